"""By how much a picture is turned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from onestream.postprocess import BadNetwork, BadPipeline
from onestream.postprocess.kinds.base import Opening, Options, ParitySection, Postprocess, Tensors, count_bad, rows
from onestream.postprocess.kinds.classification import Activation, top_k
from onestream.postprocess.network import NetworkOutput, decided_activation, shapes_text
from onestream.wire.tensor_names import DEGREES, SCORES


class Rotation(Options):
    """How far the picture is turned, from a classifier whose classes are angles: one output (batch, classes)."""

    takes_regions: ClassVar[bool] = True
    turns_regions: ClassVar[bool] = True
    parity_section: ClassVar[ParitySection] = "classes"

    kind: Literal["rotation"] = "rotation"
    degrees: tuple[Literal[0, 90, 180, 270], ...] = Field(
        min_length=2, description="of each class: by how much what is seen is turned clockwise"
    )
    min_score: float = Field(default=0.9, ge=0, le=1, description="below this score the answer is 0 degrees")
    activation: Literal["auto", "softmax", "none"] = Field(
        default="auto",
        description="*softmax* makes scores that sum to 1 of logits; *auto* is *none* for a network that ends in "
        "softmax or sigmoid itself, and *softmax* for any other",
    )

    @model_validator(mode="after")
    def _each_angle_once(self) -> Rotation:
        if len(set(self.degrees)) < len(self.degrees):
            raise ValueError(f"name each angle once, got {list(self.degrees)}")
        return self

    def class_names(self, labels: Sequence[str] | None) -> Sequence[str]:
        return [f"{degrees}°" for degrees in self.degrees]

    def open(self, opening: Opening) -> Postprocess:
        return lambda outputs, _sizes, _parameters=(): rows(_rotation(outputs, self, opening.dropped))

    def suited_to(self, outputs: Sequence[NetworkOutput]) -> Rotation:
        if len(outputs) != 1 or len(outputs[0].dims) != 1 or not outputs[0].is_float:
            raise BadNetwork(f"rotation takes one output of floats, (batch, classes); got {shapes_text(outputs)}")
        classes = outputs[0].dims[0]
        if classes is not None and classes != len(self.degrees):
            raise BadPipeline(f"postprocess.degrees has {len(self.degrees)} angles, the network has {classes} classes")
        activation = decided_activation(self.activation, "softmax", outputs[0])
        return self.model_copy(update={"activation": activation})


def _rotation(outputs: Tensors, options: Rotation, dropped: Callable[[int], None]) -> Tensors:
    assert options.activation != "auto", "the build writes which one it is"
    (logits,) = outputs.values()
    count_bad(~np.isfinite(logits).all(axis=1), dropped)
    degrees, scores = rotations(logits, options.degrees, min_score=options.min_score, activation=options.activation)
    return {DEGREES: degrees, SCORES: scores}


def rotations(
    logits: npt.NDArray[np.floating[Any]], degrees: Sequence[int], *, min_score: float, activation: Activation
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Degrees int32 (batch, 1) and scores float32 (batch, 1) of the best class of each row of (batch, classes).

    ``degrees`` are those of the classes. Below ``min_score`` they are 0, and so they are of a row with a value that is
    not finite, whose score is 0.
    """
    finite = np.isfinite(logits).all(axis=1, keepdims=True)
    scores, classes = top_k(np.where(finite, logits, 0), 1, activation=activation)
    scores = np.where(finite, scores, np.float32(0))
    sure = scores >= np.float32(min_score)
    return np.where(sure & finite, np.array(degrees, np.int32)[classes], np.int32(0)), scores
