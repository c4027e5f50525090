"""What pipelines of each kind answer, and what they ask of the network."""

from __future__ import annotations

from collections.abc import Sequence

from onestream.postprocess.options import MOST_MASK_CLASSES, MOST_PROBABILITY_MASKS, Segmentation
from onestream.preprocess import Definition
from onestream.serving.building.onnx_postprocess import check_embedding, check_segmentation
from onestream.serving.building.triton_config import Tensor
from onestream.serving.engine.served import NetworkOutput
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.wire.tensor_names import CLASS_IDS, EMBEDDING, IMAGE_SIZE, LABELS, MASKS


def embedding_outputs(outputs: Sequence[NetworkOutput]) -> tuple[Tensor, ...]:
    """The answer of an embedding. Raises ``BadNetwork`` where the network's outputs are no vector."""
    return (Tensor(EMBEDDING, "float32", (check_embedding(outputs) or -1,)),)


def segmentation_outputs(
    definition: Definition, options: Segmentation, outputs: Sequence[NetworkOutput], labels: str | None
) -> tuple[Tensor, ...]:
    """The answer of a segmentation.

    Raises ``BadNetwork`` where the network's output is no grid over its input or has too many classes, ``BadPipeline``
    where the classes or labels that the options name are not the network's.
    """
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
    if labels is not None and len(labels.splitlines()) != classes:
        raise BadPipeline(f"postprocess.labels has {len(labels.splitlines())} names, expected {classes}")
    return (
        Tensor(MASKS, "string", (1 if options.output == "classes" else masked,)),
        Tensor(CLASS_IDS, "int32", (masked,)),
        Tensor(LABELS, "string", (masked,)),
        Tensor(IMAGE_SIZE, "int32", (2,)),
    )
