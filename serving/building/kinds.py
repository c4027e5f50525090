"""What pipelines of each kind answer, and what they ask of the network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from onestream.postprocess.labels import names_in
from onestream.postprocess.matte.composer import picture_window
from onestream.postprocess.options import (
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
from onestream.wire.tensor_names import (
    BOXES,
    CHARACTER_SCORES,
    CLASS_IDS,
    CTC,
    DEGREES,
    EMBEDDING,
    IMAGE_SIZE,
    LABELS,
    LEFT_OUT,
    MASKS,
    MATTE,
    QUADS,
    SCORES,
    TEXTS,
)


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
            return _detection()
        case Embedding():
            return (Tensor(EMBEDDING, "float32", (check_embedding(outputs) or -1,)),)
        case Matte():
            return _matte(definition, outputs)
        case Segmentation():
            return _segmentation(definition, options, outputs, labels)
        case TextLines():
            return _text_lines(outputs)
        case Rotation():
            check_rotation(outputs, options)
            return Tensor(DEGREES, "int32", (1,)), Tensor(SCORES, "float32", (1,))
        case Text():
            return _text(options, outputs)
        case Raw():
            return tensors_of(outputs)


def tensors_of(outputs: Sequence[NetworkOutput]) -> tuple[Tensor, ...]:
    """A network's outputs as tensors of Triton's."""
    return tuple(Tensor(out.name, out.dtype, tuple(-1 if dim is None else dim for dim in out.dims)) for out in outputs)


def _classification(
    options: Classification, outputs: Sequence[NetworkOutput], labels: str | None
) -> tuple[Tensor, ...]:
    classes = check_classification(outputs, options)
    if labels is not None and classes is not None and len(names_in(labels)) != classes:
        raise BadPipeline(f"postprocess.labels has {len(names_in(labels))} names, the network has {classes} classes")
    k = (options.top_k,)
    return Tensor(SCORES, "float32", k), Tensor(CLASS_IDS, "int32", k), Tensor(LABELS, "string", k)


def _detection() -> tuple[Tensor, ...]:
    """Each picture has as many as there are objects in it."""
    return (
        Tensor(BOXES, "float32", (-1, 4)),
        Tensor(SCORES, "float32", (-1,)),
        Tensor(CLASS_IDS, "int32", (-1,)),
        Tensor(LABELS, "string", (-1,)),
        Tensor(IMAGE_SIZE, "int32", (2,)),
    )


def _matte(definition: Definition, outputs: Sequence[NetworkOutput]) -> tuple[Tensor, ...]:
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
    return (Tensor(MATTE, "uint8", size_hw),)


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
    return (
        Tensor(MASKS, "string", (1 if options.output == "classes" else masked,)),
        Tensor(CLASS_IDS, "int32", (masked,)),
        Tensor(LABELS, "string", (masked,)),
        Tensor(IMAGE_SIZE, "int32", (2,)),
    )


def _text_lines(outputs: Sequence[NetworkOutput]) -> tuple[Tensor, ...]:
    """Each picture has as many as there are lines in it."""
    check_text_lines(outputs)
    return (
        Tensor(QUADS, "float32", (-1, 4, 2)),
        Tensor(SCORES, "float32", (-1,)),
        Tensor(IMAGE_SIZE, "int32", (2,)),
        Tensor(LEFT_OUT, "int32", (1,)),
    )


def _text(options: Text, outputs: Sequence[NetworkOutput]) -> tuple[Tensor, ...]:
    if tuple(out.name for out in outputs) != CTC:
        raise BadNetwork(
            f"text takes a network built for it, which gives {' and '.join(CTC)}; build the pipeline again"
        )
    answer = Tensor(TEXTS, "string", (1,)), Tensor(SCORES, "float32", (1,))
    return (*answer, Tensor(CHARACTER_SCORES, "string", (1,))) if options.character_scores else answer
