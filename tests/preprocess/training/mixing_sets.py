"""Chains that mix samples, and pictures that are nothing but sizes."""

from __future__ import annotations

from onestream.preprocess import (
    Decode,
    Definition,
    Letterbox,
    Normalize,
    Output,
    Resize,
)
from onestream.preprocess.geometry import Boxes
from onestream.preprocess.training import Augmentation

SQUARE = Definition(operations=[Decode(), Resize(mode="exact", size=(60, 60)), Output(layout="NHWC", dtype="uint8")])
BOXED = Definition(operations=[Decode(), Letterbox(size=(96, 128), value=7), Output(layout="NHWC", dtype="uint8")])
CROPPED = Definition(
    operations=[Decode(), Letterbox(size=(96, 112)), Normalize(mean=(0.4,) * 3, std=(0.3,) * 3), Output()]
)
MIXED_CLASSES = Augmentation(
    [
        {"op": "box", "area": [0.3, 1.0]},
        {"op": "flip"},
        {"op": "rotation", "degrees": [-20, 20], "probability": 0.5},
        {"op": "erase"},
        {"op": "cutmix", "probability": 0.5},
        {"op": "mixup", "alpha": 0.4},
        {"op": "noise", "sigma": [0, 5]},
    ]
)
MIXED_BOXES = Augmentation(
    [
        {"op": "flip"},
        {"op": "affine", "degrees": [-10, 10], "scale": [0.8, 1.3], "probability": 0.5},
        {"op": "mosaic", "probability": 0.7},
        {"op": "mixup", "alpha": 8, "probability": 0.3},
        {"op": "linear_color", "brightness": 0.2, "hue": 0.1},
    ]
)


class Known:
    """Pictures of which the sizes and boxes are known; one of a size of None cannot be used."""

    def __init__(self, sizes: list[tuple[int, int] | None], boxes: dict[int, Boxes] | None = None) -> None:
        self._sizes, self._boxes = sizes, boxes or {}

    def __len__(self) -> int:
        return len(self._sizes)

    def size_hw(self, index: int) -> tuple[int, int] | None:
        return self._sizes[index]

    def objects(self, index: int) -> Boxes | None:
        return self._boxes.get(index)
