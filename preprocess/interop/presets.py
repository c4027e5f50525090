"""Definitions of torchvision's weights and of timm's models as data, for environments without these libraries.

``make presets`` writes ``presets.json`` anew from the installed libraries.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Callable, Iterator
from importlib import metadata, resources
from pathlib import Path
from typing import Any, Literal

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotImport
from onestream.preprocess.interop.common import Imported
from onestream.preprocess.interop.libraries import load
from onestream.preprocess.interop.timm_config import from_timm
from onestream.preprocess.interop.torchvision_transforms import from_torchvision

Library = Literal["torchvision", "timm"]

_FILE = "presets.json"
_TEST_SIZE = "timm, with the size for tests"
_IMAGENET_CLASSES = 1000


def preset(library: Library, name: str, *, use_test_size: bool = False) -> Imported:
    """The definition of weights such as *ResNet50_Weights.IMAGENET1K_V2* or of a model such as *resnet50*.

    Raises ``CannotImport``, with names like it, for a name that the data lacks.
    """
    version, found = _section_of(library)
    if name not in found:
        like = ", ".join(difflib.get_close_matches(name, found, n=3))
        raise CannotImport(f"{version} has no preset {name!r}{'; like it are ' if like else ''}{like}")
    if use_test_size:
        # Those without a size of their own for tests have the usual one.
        found = found | _section_of(_TEST_SIZE)[1]
    full, operations, classes = found[name]
    return Imported(
        Definition.model_validate({"operations": operations}),
        f"{library}'s {full} ({version})",
        postprocess=classification(classes),
        has_test_size=library == "timm",
    )


@functools.cache
def _section_of(section: str) -> tuple[str, dict[str, tuple[str, Any, int]]]:
    """The version of a library, and by each name of its presets the full name, the operations, the classes."""
    data = json.loads((resources.files(__package__) / _FILE).read_text(encoding="utf-8"))[section]
    found = {
        name: (name, one["operations"], int(classes))
        for one in data["definitions"]
        for classes, names in one["names"].items()
        for name in names
    }
    return data["version"], found | {alias: found[full] for alias, full in data["aliases"].items()}


def classification(classes: int) -> dict[str, Any] | None:
    """The section ``postprocess`` of published weights with so many classes; None for 0, those without a classifier."""
    if not classes:
        return None
    return {"kind": "classification", **({"labels": "imagenet"} if classes == _IMAGENET_CLASSES else {})}


def classes_of(weights: Any) -> int:
    """How many classes the network of torchvision's weights ranks; 0 where it does not classify images."""
    classifies = getattr(weights.transforms, "func", weights.transforms).__name__ == "ImageClassification"
    return len(weights.meta.get("categories") or ()) if classifies else 0


def collect() -> dict[str, Any]:
    """The content of the file, from the installed libraries."""
    torchvision, timm = load("torchvision.models"), load("timm.models")
    weights = {str(one): one for name in torchvision.list_models() for one in torchvision.get_model_weights(name)}
    defaults = {name: str(torchvision.get_model_weights(name).DEFAULT) for name in torchvision.list_models()}
    defaults |= {f"{name.partition('.')[0]}.DEFAULT": name for name in defaults.values()}
    configs = {name: timm.get_pretrained_cfg(name) for name in timm.list_pretrained()}
    plain = {name: timm.get_pretrained_cfg(name) for name in timm.list_models()}
    tags = {name: f"{one.architecture}.{one.tag}" for name, one in plain.items() if one is not None and one.tag}

    def of_timm(*, use_test_size: bool) -> dict[str, Any]:
        rows = (
            (name, one.num_classes, functools.partial(from_timm, one, use_test_size=use_test_size))
            for name, one in configs.items()
            if not use_test_size or one.test_input_size or one.test_crop_pct
        )
        return _section("timm", rows, tags)

    return {
        "torchvision": _section(
            "torchvision",
            ((name, classes_of(one), functools.partial(from_torchvision, one)) for name, one in weights.items()),
            defaults,
        ),
        "timm": of_timm(use_test_size=False),
        _TEST_SIZE: of_timm(use_test_size=True),
    }


def _section(
    package: str, rows: Iterator[tuple[str, int, Callable[[], Definition]]], aliases: dict[str, str]
) -> dict[str, Any]:
    """The names of a library by their definitions, and of these by the number of classes."""
    found: dict[str, dict[str, Any]] = {}
    for name, classes, definition in rows:
        try:
            chain = definition().operations
        except CannotImport:
            continue
        operations = [{"op": one.op, **one.model_dump(mode="json", exclude_defaults=True)} for one in chain]
        names = found.setdefault(json.dumps(operations), {"operations": operations, "names": {}})["names"]
        names.setdefault(str(classes), []).append(name)
    listed = {name for one in found.values() for names in one["names"].values() for name in names}
    return {
        "version": f"{package} {metadata.version(package)}",
        "definitions": list(found.values()),
        "aliases": {name: full for name, full in aliases.items() if full in listed},
    }


def main() -> None:
    """Write the file."""
    sections = []
    for library, one in collect().items():
        rows = ",\n".join(json.dumps(row) for row in one["definitions"])
        head = f'"version": {json.dumps(one["version"])}, "aliases": {json.dumps(one["aliases"])}'
        sections.append(f'{json.dumps(library)}: {{{head}, "definitions": [\n{rows}\n]}}')
    Path(__file__).with_name(_FILE).write_text("{" + ",\n".join(sections) + "}\n", encoding="utf-8")
