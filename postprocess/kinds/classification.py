"""The best classes of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from onestream.postprocess import BadNetwork, BadPipeline
from onestream.postprocess.kinds.base import (
    Labels,
    Names,
    Opening,
    Options,
    ParitySection,
    Postprocess,
    Tensors,
    names_of,
    rows,
)
from onestream.postprocess.network import Made, NetworkOutput, Nodes, decided_activation, shapes_text
from onestream.postprocess.parameters import Parameters, RequestParameter
from onestream.preprocess import Definition
from onestream.preprocess.geometry import Size
from onestream.wire.tensor_names import CLASS_IDS, LABELS, SCORES

Activation = Literal["softmax", "none"]


def top_k(
    logits: npt.NDArray[np.floating[Any]], k: int, *, activation: Activation = "softmax"
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """The ``k`` best classes of each row, best first.

    ``logits`` is (batch, classes), float. Returns ``scores`` (batch, k) float32 and ``class_ids`` (batch, k) int32.
    ``softmax`` gives scores in 0 to 1 that sum to 1 over all classes; ``none`` returns the logits. Equal scores are
    ordered by class id. Raises ``ValueError`` where k is not in 1 to the number of classes.
    """
    if logits.ndim != 2:
        raise ValueError(f"logits must be (batch, classes), got shape {logits.shape}")
    if not 1 <= k <= logits.shape[1]:
        raise ValueError(f"k must be from 1 to {logits.shape[1]}, the number of classes, got {k}")
    values = logits.astype(np.float32)
    # A stable sort of the negated values keeps the lower class id first among equals.
    class_ids = np.argsort(-values, axis=1, kind="stable")[:, :k]
    if activation == "softmax":
        exponentials = np.exp(values - values.max(axis=1, keepdims=True))
        values = exponentials / exponentials.sum(axis=1, keepdims=True)
    return np.take_along_axis(values, class_ids, axis=1), class_ids.astype(np.int32)


class Classification(Options):
    """The best classes of a network with one output (batch, classes)."""

    takes_regions: ClassVar[bool] = True
    ends_in_graph: ClassVar[bool] = True
    ranks_classes: ClassVar[bool] = True
    parity_section: ClassVar[ParitySection] = "classes"

    kind: Literal["classification"] = "classification"
    top_k: int = Field(default=5, ge=1, description="how many of the best classes are returned")
    activation: Literal["auto", "softmax", "none"] = Field(
        default="auto",
        description="*softmax* makes scores that sum to 1 of logits or of their logarithms; *none* returns the "
        "network's output as it is; *auto* is *none* for a network that ends in softmax or sigmoid itself, and "
        "*softmax* for any other",
    )
    labels: Labels = Field(
        default=None,
        description="*imagenet*, *coco*, a file with one name a line, relative to the pipeline file, or the names "
        "themselves; without it class ids serve as names",
    )

    @property
    def request_parameters(self) -> tuple[RequestParameter, ...]:
        return (RequestParameter("top_k", 1, self.top_k, is_whole=True),)

    @property
    def named_labels(self) -> tuple[str, Labels]:
        return "labels", self.labels

    def open(self, opening: Opening) -> Postprocess:
        return _classifier(self, opening.labels, has_tail=opening.has_tail)

    def suited_to(self, outputs: Sequence[NetworkOutput]) -> Classification:
        if len(outputs) != 1 or len(outputs[0].dims) != 1:
            raise BadNetwork(
                f"classification takes one output (batch, classes); got {shapes_text(outputs)}. "
                "Use postprocess: {kind: raw}"
            )
        classes = outputs[0].dims[0]
        if classes is not None and self.top_k > classes:
            raise BadPipeline(f"postprocess.top_k is {self.top_k}, the network has {classes} classes")
        activation = decided_activation(self.activation, "softmax", outputs[0])
        return self.model_copy(update={"activation": activation})

    def lengths(self, outputs: Sequence[NetworkOutput], definition: Definition, names: int | None) -> dict[str, int]:
        classes = outputs[0].dims[0]
        if None not in (names, classes) and names != classes:
            raise BadPipeline(f"postprocess.labels has {names} names, the network has {classes} classes")
        return {"k": self.top_k}

    def tail(self, nodes: Nodes, outputs: Sequence[NetworkOutput]) -> dict[str, Made]:
        """What ``top_k`` computes. Classes are chosen by their logits, as there: softmax may round two to one score."""
        (output,) = outputs
        logits = output.name if output.dtype == "float32" else nodes.cast(output.name, "float32")
        scores, places = nodes.top(logits, self.top_k)
        if self.activation == "softmax":
            scores = nodes.add("GatherElements", nodes.add("Softmax", logits, axis=1), places, axis=1)
        dims = (self.top_k,)
        return {SCORES: Made(scores, "float32", dims), CLASS_IDS: Made(nodes.cast(places, "int32"), "int32", dims)}


def _classifier(options: Classification, labels: Sequence[str] | None, *, has_tail: bool) -> Postprocess:
    names = names_of(labels)

    def classes(outputs: Tensors, _sizes: Sequence[Size], parameters: Sequence[Parameters] = ()) -> list[Tensors]:
        found = rows(_classes(outputs, options, names, has_tail=has_tail))
        if not any(parameters):
            return found
        most = [int(one.get("top_k", options.top_k)) for one in parameters]
        return [{name: value[:, :k] for name, value in one.items()} for one, k in zip(found, most, strict=True)]

    return classes


def _classes(outputs: Tensors, options: Classification, names: Names, *, has_tail: bool) -> Tensors:
    if has_tail:
        scores, class_ids = outputs[SCORES], outputs[CLASS_IDS]
    else:
        assert options.activation != "auto", "the build writes which one it is"
        (logits,) = outputs.values()
        scores, class_ids = top_k(logits, options.top_k, activation=options.activation)
    return {SCORES: scores, CLASS_IDS: class_ids, LABELS: names(class_ids)}
