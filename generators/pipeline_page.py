"""Every field of a pipeline file as a Markdown page, from the models that check the file.

python -m generators.pipeline_page > docs/pipeline.md
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from onestream.serving.cascade import Cascade, CascadeStage
from onestream.serving.pipeline import Pipeline

_Schema = dict[str, Any]
"""JSON Schema of a model or of a field, as pydantic writes it."""

_HEAD = """\
# Every field of a pipeline file

A pipeline file is YAML, such as [pipelines/classify.yaml](../pipelines/classify.yaml). Only `preprocess` is required.
A field that is not on this page is refused, and so is a value that is not allowed: the message names the file, the
field, what was seen and what is allowed. `onestream build` reads the file; build again after a change.

[definition.md](definition.md) says what the operations compute and how closely the backends agree;
[operations.md](operations.md), [overload.md](overload.md), [gpu.md](gpu.md) and [video.md](video.md) say when to change
an option. `python -m generators.pipeline_page` prints this page.
"""

_CASCADE = """
## A cascade

A file with `stages` is [a cascade](cascades.md), such as [pipelines/read.yaml](../pipelines/read.yaml). It has `name`,
`limits`, `serving` (whose `max_batch_size` is 1 and `timeout_s` 60 by default) and `video` (without `output`) as
above, and

| field | values | default | meaning |
|---|---|---|---|
| `stages` | names, each with the [fields of a stage](#the-file) | required | {stages} |
| `precision` of a stage | `float32` | the cascade's | {precision} |
"""


def page() -> str:
    """The page. Each section is a table of fields; a field that holds fields leads to its own section."""
    schema = Pipeline.model_json_schema()
    # The fields of a stage come from a class that the pipeline's extends.
    schema["properties"] = {"name": schema["properties"].pop("name")} | schema["properties"]
    sections = "".join(_sections("The file", "", schema, schema["$defs"]))
    stages = Cascade.model_fields["stages"].description or ""
    precision = CascadeStage.model_fields["precision"].description or ""
    return _HEAD + sections + _CASCADE.format(stages=_text(stages), precision=_text(precision))


def _sections(
    title: str, path: str, model: _Schema, models: dict[str, _Schema], before: Sequence[tuple[str, _Schema]] = ()
) -> Iterator[str]:
    """The section of a model, then those of the models in its fields. ``path`` leads to its fields from the top.

    Of the sections ``before`` and beside it, one that has most of its fields stands for these.
    """
    rows: list[str] = []
    below: list[tuple[str, str, _Schema]] = []
    told, like = {}, ""
    for heading, other in before:
        common = {name: field for name, field in model["properties"].items() if other["properties"].get(name) == field}
        if len(common) > len(model["properties"]) / 2:
            told, like = common, f" It has the fields of [{heading.rpartition(' ')[2]}](#{anchor(heading)}), and these:"
    for name, field in model["properties"].items():
        if name == model.get("kind_field") or name in told:
            continue
        links = []
        for kind, inside in _models_of(field, models):
            heading = f"{path}{name}, {inside['kind_field']}: {kind}" if kind else f"{path}{name}"
            links.append(f"[{kind or heading}](#{anchor(heading)})")
            below.append((heading, f"{path}{name}.", inside))
        values = ", ".join(links) or _values(field)
        rows.append(f"| `{name}` | {values} | {_default(name, field, model)} | {_text(field['description'])} |\n")
    yield f"\n## {title}\n\n{_text(model['description'])}{like}\n"
    if rows:
        yield "\n| field | values | default | meaning |\n|---|---|---|---|\n" + "".join(rows)
    for place, (heading, inner_path, inside) in enumerate(below):
        beside = [(other, model) for other, path, model in below[:place] if path == inner_path]
        yield from _sections(heading, inner_path, inside, models, beside)


def _models_of(field: _Schema, models: dict[str, _Schema]) -> Iterator[tuple[str, _Schema]]:
    """The models that a field may hold, each with the value of the field that tells it from the others, if one does."""
    kind_field = field.get("discriminator", {}).get("propertyName")
    for one in [field, *field.get("anyOf", []), *field.get("oneOf", [])]:
        if "$ref" in one:
            model = models[one["$ref"].rpartition("/")[2]]
            kind = model["properties"][kind_field]["const"] if kind_field else ""
            yield kind, {**model, "kind_field": kind_field}
    if "items" in field:
        yield from _models_of(field["items"], models)


def _values(field: _Schema) -> str:
    """What a field accepts, in words."""
    if "anyOf" in field:
        return " or ".join(_values(one) for one in field["anyOf"] if one.get("type") != "null")
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    kind: str = field["type"]
    if isinstance(field.get("additionalProperties"), dict):
        return f"names, each with {_values(field['additionalProperties'])}"
    if kind == "array":
        sides = field.get("prefixItems", [])
        return f"list of {len(sides)}: {_values(sides[0])}" if sides else f"list: {_values(field['items'])}"
    if kind == "boolean":
        return "`true`, `false`"
    if kind in ("string", "object"):
        return {"string": "text", "object": "fields"}[kind]
    return f"{kind} {_range(field)}".strip()


def _range(field: _Schema) -> str:
    """The bounds of a number, in words; empty where there are none."""
    least, most = field.get("minimum"), field.get("maximum")
    above = f"above {field['exclusiveMinimum']}" if "exclusiveMinimum" in field else None
    if most is None:
        return above or (f"from {least}" if least is not None else "")
    return f"{above or least} to {most}"


def _default(name: str, field: _Schema, model: _Schema) -> str:
    """The default as it would stand in the file; ``{}`` stands for every default of a section."""
    if name == "name":
        return "the file's"
    if name in model.get("required", []):
        return "required"
    default = field["default"]
    if default is None:
        return "none"
    if isinstance(default, dict):
        default = {key: value for key, value in default.items() if key == "kind"}
    written = yaml.safe_dump(default, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")
    return f"`{written}`"


def _text(docstring: str) -> str:
    """The first paragraph of a docstring on one line, as Markdown."""
    return docstring.split("\n\n")[0].replace("\n", " ").replace("``", "`")


def anchor(heading: str) -> str:
    """The link target that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


if __name__ == "__main__":
    print(page(), end="")
