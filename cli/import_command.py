"""``onestream import``: preprocessing of other libraries in, a pipeline file out."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from onestream.cli.exit_codes import EXIT_FAILED, fail

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onestream.preprocess.interop import Imported


def import_preprocessing(
    source: Annotated[
        str,
        typer.Argument(
            help="torchvision:ResNet50_Weights.IMAGENET1K_V2, timm:MODEL, a preprocessor_config.json or timm "
            "config.json or their folder, an ONNX file of ultralytics, letterbox:640, MODULE:NAME of your own "
            "transform (docs/import.md)."
        ),
    ],
    *,
    test_size: Annotated[
        bool, typer.Option("--test-size", help="Of a timm model with two sizes, take the one for tests.")
    ] = False,
) -> None:
    """Print a pipeline file whose preprocessing equals that of another library: onestream import SOURCE > my.yaml.

    Where the source says what the network's outputs mean, the file returns boxes or classes; else the outputs.

    Exits with 1 where a definition cannot state it exactly, naming what and what is nearest.
    """
    from onestream.preprocess import PreprocessError
    from onestream.preprocess.interop import import_source

    try:
        imported = import_source(source, use_test_size=test_size)
    except PreprocessError as error:
        fail(f"cannot import {source}: {error}", EXIT_FAILED)
    typer.echo(pipeline_text(imported), nl=False)


def pipeline_text(imported: Imported) -> str:
    """A pipeline file with this definition, every field written out, and what the source says of the outputs."""
    about = [f"Preprocessing of {imported.origin}, by onestream import.", *imported.notes]
    lines = [f"# {line}" for sentence in about for line in textwrap.wrap(sentence, 117)]
    lines += ["preprocess:", "  operations:"]
    for operation in imported.definition.model_dump(mode="json")["operations"]:
        lines.append("    - " + yaml.safe_dump(operation, default_flow_style=True, sort_keys=False, width=1000).strip())
    text = "\n".join(lines) + "\n\n"
    return text + (_AS_THEY_ARE if imported.postprocess is None else _section(imported.postprocess))


_AS_THEY_ARE = """\
# The network's outputs as they are; for the best classes: {kind: classification, top_k: 5, labels: imagenet}
# For boxes: {kind: detection, family: yolo, labels: names.txt} (docs/detection.md)
postprocess: {kind: raw}
"""


def _section(postprocess: Mapping[str, Any]) -> str:
    """A field a line; a list in as many lines as it takes."""
    lines = ["postprocess:\n"]
    for field, value in postprocess.items():
        style = None if isinstance(value, list) else False
        text = yaml.safe_dump({field: value}, default_flow_style=style, width=115, allow_unicode=True)
        lines.append(textwrap.indent(text, "  "))
    return "".join(lines)
