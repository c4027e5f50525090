"""What pipelines of each kind answer, and what they ask of the network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from onestream.postprocess.kinds import (
    MOST_MASK_CLASSES,
    MOST_PROBABILITY_MASKS,
    AnyPostprocess,
    Classification,
    Detection,
    Embedding,
    Matte,
    Raw,
    Rotation,
    Segmentation,
    Text,
    TextLines,
)
from onestream.postprocess.labels import names_in
from onestream.postprocess.matte.composer import picture_window
from onestream.preprocess import Definition
from onestream.serving.built.triton_config import Tensor
from onestream.serving.engine.served import NetworkOutput
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph.onnx_postprocess import (
    check_classification,
    check_embedding,
    check_rotation,
    check_segmentation,
    check_text_lines,
)
from onestream.wire.kinds import KINDS, DType
from onestream.wire.tensor_names import CHARACTER_SCORES, CTC

_DTYPES: dict[DType, str] = {"text": "string", "file": "string"}
"""What Triton calls them, where that is another name."""


def answer_of(
    options: AnyPostprocess, definition: Definition, outputs: Sequence[NetworkOutput], labels: str | None
) -> tuple[Tensor, ...]:
    """What a pipeline answers. ``outputs`` are those of its served network, ``labels`` the text of its labels file.

    Raises ``BadNetwork`` where the outputs do not suit the kind, ``BadPipeline`` where the options name classes or
    labels that are not the network's, or the definition does not suit the kind.
    """
    match options:
        case Classification():
            return _classification(options, outputs, labels)
        case Detection():
            return _declared(options)
        case Embedding():
            return _declared(options, values=check_embedding(outputs) or -1)
        case Matte():
            return _matte(options, definition, outputs)
        case Segmentation():
            return _segmentation(definition, options, outputs, labels)
        case TextLines():
            check_text_lines(outputs)
            return _declared(options)
        case Rotation():
            check_rotation(outputs, options)
            return _declared(options)
        case Text():
            return _text(options, outputs)
        case Raw():
            return tensors_of(outputs)


def _declared(options: AnyPostprocess, **lengths: int) -> tuple[Tensor, ...]:
    """The outputs of a kind, of these lengths where they are fixed."""
    return tuple(
        Tensor(one.name, _DTYPES.get(one.dtype, one.dtype), one.dims(lengths)) for one in KINDS[options.kind].outputs
    )


def tensors_of(outputs: Sequence[NetworkOutput]) -> tuple[Tensor, ...]:
    """A network's outputs as tensors of Triton's."""
    return tuple(Tensor(out.name, out.dtype, tuple(-1 if dim is None else dim for dim in out.dims)) for out in outputs)


def _classification(
    options: Classification, outputs: Sequence[NetworkOutput], labels: str | None
) -> tuple[Tensor, ...]:
    classes = check_classification(outputs, options)
    if labels is not None and classes is not None and len(names_in(labels)) != classes:
        raise BadPipeline(f"postprocess.labels has {len(names_in(labels))} names, the network has {classes} classes")
    return _declared(options, k=options.top_k)


def _matte(options: Matte, definition: Definition, outputs: Sequence[NetworkOutput]) -> tuple[Tensor, ...]:
    try:
        for example_hw in ((1080, 1920), (1920, 1080)):
            picture_window(definition, example_hw)
    except ValueError as error:
        raise BadPipeline(f"postprocess matte: {error}") from None
    size_hw = cast("tuple[int, int]", definition.output_spec.size_hw)
    if len(outputs) != 1 or outputs[0].dtype != "float32" or outputs[0].dims != size_hw:
        shapes = ", ".join(f"{out.name} {out.dtype} {[None, *out.dims]}" for out in outputs)
        raise BadNetwork(
            f"matte takes one output, float32 [None, {size_hw[0]}, {size_hw[1]}], the size of the definition's output; "
            f"got {shapes}"
        )
    return _declared(options, height=size_hw[0], width=size_hw[1])


def _segmentation(
    definition: Definition, options: Segmentation, outputs: Sequence[NetworkOutput], labels: str | None
) -> tuple[Tensor, ...]:
    classes, grid_hw = check_segmentation(outputs)
    size_hw = definition.output_spec.size_hw
    if any(side is None or side % cells for side, cells in zip(size_hw, grid_hw, strict=True)):
        raise BadNetwork(
            f"segmentation takes an output whose height and width divide those of the network's input, {size_hw[0]} "
            f"and {size_hw[1]}; got {outputs[0].name} of {grid_hw[0]} and {grid_hw[1]}"
        )
    if classes > MOST_MASK_CLASSES:
        raise BadNetwork(f"segmentation takes at most {MOST_MASK_CLASSES} classes; the network has {classes}")
    if unknown := [number for number in options.classes or () if number >= classes]:
        raise BadPipeline(f"postprocess.classes names {unknown[0]}; the network has the classes 0 to {classes - 1}")
    if options.output == "probabilities" and options.classes is None and classes > MOST_PROBABILITY_MASKS:
        raise BadPipeline(
            f"postprocess.output is probabilities, which takes at most {MOST_PROBABILITY_MASKS} classes, and the "
            f"network has {classes}: say which in postprocess.classes"
        )
    if options.output == "classes":
        # One probability tells two classes.
        classes = masked = max(2, classes)
    else:
        masked = len(options.classes or range(classes))
    if labels is not None and len(names_in(labels)) != classes:
        raise BadPipeline(f"postprocess.labels has {len(names_in(labels))} names, expected {classes}")
    return _declared(options, masks=1 if options.output == "classes" else masked, classes=masked)


def _text(options: Text, outputs: Sequence[NetworkOutput]) -> tuple[Tensor, ...]:
    if tuple(out.name for out in outputs) != CTC:
        raise BadNetwork(
            f"text takes a network built for it, which gives {' and '.join(CTC)}; build the pipeline again"
        )
    return tuple(one for one in _declared(options) if options.character_scores or one.name != CHARACTER_SCORES)
