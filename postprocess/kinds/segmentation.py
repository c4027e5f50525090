"""What each pixel of a picture shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from onestream.postprocess import BadNetwork, BadPipeline
from onestream.postprocess.kinds.base import Labels, Opening, Options, Postprocess, Tensors, names_of
from onestream.postprocess.network import NetworkOutput, decided_activation, grid_of
from onestream.postprocess.parameters import Parameters
from onestream.preprocess import Definition
from onestream.preprocess.geometry import Size
from onestream.wire.tensor_names import CLASS_IDS, IMAGE_SIZE, LABELS, MASKS, SCORES

if TYPE_CHECKING:
    from onestream.postprocess.agreement import Agreement

MOST_MASK_CLASSES = 255
"""Classes of a segmentation: the level above theirs says that the network did not see a pixel."""

MOST_PROBABILITY_MASKS = 8
"""Of one picture: each is a file of its own, of as many pixels as the picture."""


class Segmentation(Options):
    """What each pixel of the picture shows, from a network with one output (batch, classes, height, width)."""

    takes_image_size: ClassVar[bool] = True
    takes_long: ClassVar[bool] = True
    needs_output_sizes: ClassVar[bool] = True

    kind: Literal["segmentation"] = "segmentation"
    output: Literal["classes", "probabilities"] = Field(
        default="classes",
        description="*classes*: one mask, whose levels are the best classes; *probabilities*: one mask for each class, "
        "with levels of 0 to 255",
    )
    activation: Literal["auto", "softmax", "sigmoid", "none"] = Field(
        default="auto",
        description="what makes probabilities of the network's output; *auto* is *none* for a network that ends in "
        "softmax or sigmoid itself; for any other it is *softmax*, and *sigmoid* where there is one class",
    )
    classes: tuple[Annotated[int, Field(ge=0, le=MOST_MASK_CLASSES - 1)], ...] | None = Field(
        default=None,
        min_length=1,
        max_length=MOST_PROBABILITY_MASKS,
        description="of *probabilities* only: the classes that get a mask; without it every class, which is for "
        f"networks of at most {MOST_PROBABILITY_MASKS}",
    )
    labels: Labels = Field(
        default=None,
        description="a file with one name a line in the order of the network's classes, relative to the pipeline file, "
        "or the names themselves; without it class ids serve as names",
    )

    @model_validator(mode="after")
    def _classes_get_masks(self) -> Segmentation:
        if self.classes is not None and self.output != "probabilities":
            raise ValueError("classes says which probabilities leave; it takes output: probabilities")
        if self.classes is not None and len(set(self.classes)) < len(self.classes):
            raise ValueError(f"name each class once, got {list(self.classes)}")
        return self

    @property
    def named_labels(self) -> tuple[str, Labels]:
        return "labels", self.labels

    def open(self, opening: Opening) -> Postprocess:
        return _segmenter(self, opening.definition, opening.labels)

    def open_compared(self, opening: Opening) -> Postprocess:
        """See ``Options.open_compared``: the class of each cell of the network's grid, and its scores."""
        from onestream.postprocess.segmentation import class_grid

        activation = self.activation
        assert activation != "auto", "the build writes which one it is"

        def grids(outputs: Tensors, _sizes: Sequence[Size], _parameters: Sequence[Parameters] = ()) -> list[Tensors]:
            (batch,) = outputs.values()
            cells = [scores.reshape(-1, *scores.shape[-2:]) for scores in batch]
            return [{CLASS_IDS: class_grid(scores, activation=activation), SCORES: scores} for scores in cells]

        return grids

    def agreement(self, pairs: Sequence[tuple[Tensors, Tensors]]) -> Agreement:
        from onestream.postprocess.agreement import of_values

        same = np.concatenate([(one[CLASS_IDS] == other[CLASS_IDS]).ravel() for one, other in pairs])
        changes = np.concatenate([np.abs(one[SCORES] - other[SCORES]).ravel() for one, other in pairs])
        return of_values("cells of the network's grid with the same class", float(same.mean()), changes)

    def suited_to(self, outputs: Sequence[NetworkOutput]) -> Segmentation:
        classes = grid_of(outputs, self.kind)
        if classes == 1 and self.activation == "softmax":
            raise BadPipeline("postprocess.activation is softmax, which is 1 everywhere for the network's one class")
        suited = "sigmoid" if classes == 1 else "softmax"
        activation = decided_activation(self.activation, suited, outputs[0])
        return self.model_copy(update={"activation": activation})

    def lengths(self, outputs: Sequence[NetworkOutput], definition: Definition, names: int | None) -> dict[str, int]:
        classes = grid_of(outputs, self.kind, definition)
        if classes > MOST_MASK_CLASSES:
            raise BadNetwork(f"segmentation takes at most {MOST_MASK_CLASSES} classes; the network has {classes}")
        if unknown := [number for number in self.classes or () if number >= classes]:
            raise BadPipeline(f"postprocess.classes names {unknown[0]}; the network has the classes 0 to {classes - 1}")
        is_one_mask = self.output == "classes"
        if not is_one_mask and self.classes is None and classes > MOST_PROBABILITY_MASKS:
            raise BadPipeline(
                f"postprocess.output is probabilities, which takes at most {MOST_PROBABILITY_MASKS} classes, and the "
                f"network has {classes}: say which in postprocess.classes"
            )
        if is_one_mask:
            # One probability tells two classes.
            classes = max(2, classes)
        if names not in (None, classes):
            raise BadPipeline(f"postprocess.labels has {names} names, expected {classes}")
        told = classes if is_one_mask else len(self.classes or range(classes))
        return {"masks": 1 if is_one_mask else told, "classes": told}


def _segmenter(options: Segmentation, definition: Definition, labels: Sequence[str] | None) -> Postprocess:
    from onestream.postprocess.segmentation import Place, class_grid, level_grids, png, probabilities

    names, activation = names_of(labels), options.activation
    assert activation != "auto", "the build writes which one it is"

    def masks(scores: npt.NDArray[Any], size_hw: Size) -> Tensors:
        # A network of one class may leave that dimension out.
        scores = scores.reshape(-1, *scores.shape[-2:])
        place = Place(definition, size_hw, (scores.shape[1], scores.shape[2]))
        if options.output == "classes":
            class_ids = np.arange(max(2, len(scores)), dtype=np.int32)
            files = [png(place.classes(class_grid(scores, activation=activation)))]
        else:
            class_ids = np.array(options.classes or range(len(scores)), np.int32)
            chosen = probabilities(scores, activation=activation)[class_ids]
            files = [png(place.levels(grid)) for grid in level_grids(chosen)]
        return {
            MASKS: np.array([files], object),
            CLASS_IDS: class_ids[None],
            LABELS: names(class_ids)[None],
            IMAGE_SIZE: np.array([size_hw], np.int32),
        }

    def masks_of_each(outputs: Tensors, sizes: Sequence[Size], _parameters: Sequence[Parameters] = ()) -> list[Tensors]:
        (batch,) = outputs.values()
        return [masks(scores, size_hw) for scores, size_hw in zip(batch, sizes, strict=True)]

    return masks_of_each
