"""``onestream import``: preprocessing of other libraries in, a pipeline file or an augmentation out."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from onestream.cli.exit_codes import EXIT_CANNOT_START, EXIT_FAILED, fail
from onestream.wire.plain_text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic import BaseModel

    from onestream.preprocess.interop import Imported
    from onestream.preprocess.interop.torchvision_training import ImportedAugmentation


def import_preprocessing(
    source: Annotated[
        str,
        typer.Argument(
            help="torchvision:ResNet50_Weights.IMAGENET1K_V2, timm:MODEL, a preprocessor_config.json, timm "
            "config.json, open_clip_config.json or their folder, an ONNX file of ultralytics, letterbox:640, "
            "keras:caffe, MODULE:NAME of your own transform (docs/own-network.md)."
        ),
    ],
    *,
    augmentation: Annotated[
        bool,
        typer.Option(
            "--augmentation",
            help="Of a transform for training, MODULE:NAME, or of a file of options of timm's create_transform: print "
            "the augmentation for loaders (docs/augmentation.md).",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; it is left as it is where the import fails."),
    ] = None,
    test_size: Annotated[
        bool, typer.Option("--test-size", help="Of a timm model with two sizes, take the one for tests.")
    ] = False,
) -> None:
    """Write a pipeline file whose preprocessing equals that of another library: onestream import SOURCE -o my.yaml.

    Where the source says what the network's outputs mean, the file returns boxes or classes; else the outputs. With
    --augmentation it prints what a loader draws as the source draws it. Of a vision-language model it is a definition
    for onestream.preprocess.patches.

    Exits with 1 where it cannot be stated exactly, naming what and what is nearest.
    """
    if augmentation and test_size:
        fail("--augmentation and --test-size exclude each other: training has one size", EXIT_CANNOT_START)
    from onestream.preprocess import PreprocessError
    from onestream.preprocess.interop import import_augmentation, import_source

    try:
        if augmentation:
            text = augmentation_text(import_augmentation(source))
        else:
            text = pipeline_text(import_source(source, use_test_size=test_size))
    except PreprocessError as error:
        reason = one_line(str(error))
        reason = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}…"
        fail(f"cannot import {source}: {reason}", EXIT_FAILED)
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{output}: {error.strerror}", EXIT_CANNOT_START)


def pipeline_text(imported: Imported) -> str:
    """A pipeline file with this definition, every field written out, and what the source says of the outputs.

    Of one that ends in patches or tiles, which no pipeline has, the definition's file.
    """
    lines = _comments([f"Preprocessing of {imported.origin}, by onestream import.", *imported.notes])
    operations = _operations(imported.definition.operations)
    if imported.definition.for_processor is not None:
        return "\n".join([*lines, "operations:", *operations]) + "\n"
    lines += ["preprocess:", "  operations:"]
    lines += [f"    {line}" for line in operations]
    text = "\n".join(lines) + "\n\n"
    return text + (_AS_THEY_ARE if imported.postprocess is None else _section(imported.postprocess))


def augmentation_text(imported: ImportedAugmentation) -> str:
    """An augmentation as a file, every field written out, and in comments what its pipeline must be."""
    chain, end = imported.augmentation, "has"
    if imported.size_hw is not None:
        size = "x".join(map(str, imported.size_hw))
        end = f"leaves a picture of {size} as it is and has"
        if imported.filter is not None:
            end = f"ends in {size}, resizes by {imported.filter} and has"
    lines = _comments(
        [
            f"Augmentation of {imported.origin}, by onestream import.",
            *imported.notes,
            f"It is for a pipeline whose preprocessing {end}",
        ]
    )
    lines += [f"#   {line}" for line in _operations(imported.operations)]
    lines += ["operations:", *_operations(chain.operations)]
    if chain.fill is not None:
        lines.append(f"fill: {chain.fill}")
    return "\n".join(lines) + "\n"


def _comments(sentences: Iterable[str]) -> list[str]:
    # A comment ends at every line break that YAML knows, and what follows would be fields.
    return [f"# {line}" for sentence in sentences for line in textwrap.wrap(one_line(sentence), 117)]


def _operations(operations: Iterable[BaseModel]) -> list[str]:
    """A line of YAML for each."""
    return ["- " + _on_one_line(operation.model_dump(mode="json")) for operation in operations]


def _on_one_line(fields: dict[str, Any]) -> str:
    # What kind of operation it is stands first, whatever class declares it.
    ordered = {"op": fields["op"], **fields}
    return yaml.safe_dump(ordered, default_flow_style=True, sort_keys=False, width=1000).strip()


_LONGEST_REASON = 1000
"""Characters; a reason quotes the source, whose fields may have any length."""
_AS_THEY_ARE = """\
# The network's outputs as they are; for the best classes: {kind: classification, top_k: 5, labels: names.txt}
# For boxes: {kind: detection, family: yolo, labels: names.txt} (docs/kinds.md)
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
