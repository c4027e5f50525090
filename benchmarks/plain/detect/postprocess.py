"""A network's encodings and logits to boxes, with NumPy."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

SCORE_THRESHOLD = 0.25
IOU_THRESHOLD = 0.5
MAX_DETECTIONS = 100

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]


class TritonPythonModel:
    """Boxes of each request, in pixels of its picture."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the anchors, and names and ids of the classes."""
        folder = Path(args["model_repository"])
        names = (folder / "labels.txt").read_text(encoding="utf-8").splitlines()
        self.names = np.array([name.encode() for name in names], object)
        self.class_ids = np.load(folder / "class_ids.npy")
        self.anchors = np.load(folder / "anchors.npy")

    def execute(self, requests: list[Any]) -> list[Any]:
        """Postprocess request by request: each has another number of objects."""
        responses = []
        for request in requests:
            encodings, logits, image_size = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0]
                for name in ("encodings", "logits", "image_size")
            )
            boxes, scores, classes = detect(encodings, logits, self.anchors, image_size)
            tensors = [
                pb_utils.Tensor("boxes", boxes[None]),
                pb_utils.Tensor("scores", scores[None]),
                pb_utils.Tensor("class_ids", self.class_ids[classes][None]),
                pb_utils.Tensor("labels", self.names[classes][None]),
            ]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses


def detect(
    encodings: Floats, logits: Floats, anchors: Floats, image_size: npt.NDArray[np.int32]
) -> tuple[Floats, Floats, Indices]:
    """Boxes (n, 4), x0 y0 x1 y1 in pixels of the picture, scores and classes, best first, of one picture."""
    best_class = logits.argmax(axis=1)
    best_score = 1 / (1 + np.exp(-logits[np.arange(len(logits)), best_class]))
    candidates = np.flatnonzero(best_score > SCORE_THRESHOLD)
    boxes = decode(encodings[candidates], anchors[candidates])
    scores, classes = best_score[candidates], best_class[candidates]
    kept = [
        members[index]
        for one in np.unique(classes)
        for members in [np.flatnonzero(classes == one)]
        for index in suppress(boxes[members], scores[members])
    ]
    chosen = np.array(sorted(kept, key=lambda index: -scores[index])[:MAX_DETECTIONS], np.intp)
    height, width = image_size
    sides = np.array([width, height, width, height], np.float32)
    return np.clip(boxes[chosen] * sides, 0, sides), scores[chosen], classes[chosen]


def decode(encodings: Floats, anchors: Floats) -> Floats:
    """Encodings (n, 4) and anchors (n, 4), y x height width, to boxes x0 y0 x1 y1 in parts of the sides."""
    y, x = (encodings[:, :2] / 10 * anchors[:, 2:] + anchors[:, :2]).T
    height, width = (np.exp(encodings[:, 2:] / 5) * anchors[:, 2:]).T
    return np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], axis=1)


def suppress(boxes: Floats, scores: Floats) -> list[int]:
    """Greedy non-maximum suppression of the boxes of one class: the indices of those that stay."""
    x0, y0, x1, y1 = boxes.T
    areas = (x1 - x0) * (y1 - y0)
    order = scores.argsort()[::-1]
    kept = []
    while len(order):
        best, others = order[0], order[1:]
        kept.append(int(best))
        wide = np.maximum(0, np.minimum(x1[best], x1[others]) - np.maximum(x0[best], x0[others]))
        high = np.maximum(0, np.minimum(y1[best], y1[others]) - np.maximum(y0[best], y0[others]))
        intersection = wide * high
        order = others[intersection / (areas[best] + areas[others] - intersection) <= IOU_THRESHOLD]
    return kept
