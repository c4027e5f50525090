"""Makes training sets of real photos, cut and scaled so that no two are alike, and chains that vary and mix them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from definitions import in_levels
from PIL import Image

from onestream.preprocess import BadSample, CenterCrop, Decode, Definition, Letterbox, Normalize, Output, Resize
from onestream.preprocess.geometry import Boxes
from onestream.preprocess.training import Augmentation

ASSETS = Path(__file__).parents[2] / "assets"
CLASSES = ("astronaut", "cat", "coffee")
_FILES = ("astronaut.jpg", "chelsea.jpg", "coffee.jpg")
_TURNS = {1: None, 3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
_FORMATS = (("JPEG", ".jpg"), ("JPEG", ".JPEG"), ("PNG", ".png"), ("WebP", ".webp"))

DEFINITION = Definition(
    operations=(
        Decode(),
        Resize(mode="shorter", size=72),
        CenterCrop(size=(64, 56)),
        Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    )
)
FORMATS = {
    "rgb": DEFINITION,
    "bgr": Definition(
        operations=(
            Decode(color="bgr"),
            Letterbox(size=(48, 64)),
            Normalize(mean=(103.53, 116.28, 123.675), std=(57.375, 57.12, 58.395), scale=1),
        )
    ),
    "gray": Definition(
        operations=(
            Decode(color="gray"),
            Letterbox(size=(48, 64)),
            Normalize(mean=(0.4,), std=(0.3,)),
            Output(layout="NHWC"),
        )
    ),
    "float16": Definition(operations=(*DEFINITION.operations[:-1], Output(dtype="float16"))),
    "uint8": Definition(
        operations=(Decode(), Resize(mode="exact", size=(40, 44), filter="bicubic"), Output(dtype="uint8"))
    ),
}
"""Definitions of each colour and format that a network takes."""
EVERYTHING = Augmentation(
    [
        {"op": "box", "area": [0.3, 1.0]},
        {"op": "flip"},
        {"op": "flip", "axis": "vertical"},
        {"op": "rotation", "degrees": [-40, 40], "probability": 0.5},
        {"op": "affine", "translate": [0.1, 0.1], "scale": [0.8, 1.2], "shear_x": [-10, 10], "probability": 0.5},
        {"op": "perspective"},
        {"op": "padded_crop"},
        {"op": "color_jitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
        {"op": "trivial_augment"},
        {"op": "rand_augment"},
        {"op": "blur", "probability": 0.5},
        {"op": "noise", "probability": 0.5},
        {"op": "jpeg", "probability": 0.5},
        {"op": "erase"},
    ]
)


def stretched(height: int, width: int) -> Definition:
    """One that gives any picture this size, in levels."""
    return in_levels(Resize(mode="exact", size=(height, width)))


def only_batch(loader: Any) -> Any:
    """The one batch of an epoch; the loader is closed."""
    with loader:
        (batch,) = loader
    return batch


def assert_one_bad(files: Any, message: str) -> None:
    """One sample has a problem, which is told in one line."""
    assert sum(bool(sample.problem) for sample in files.samples) == 1
    with pytest.raises(BadSample, match=message) as raised:
        files.refuse_bad()
    assert "\n" not in str(raised.value)


SQUARE, BOXED = stretched(60, 60), in_levels(Letterbox(size=(96, 128), value=7))
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


def write_photos(folder: Path, *, count: int) -> None:
    """Write ``count`` images below ``folder``, in turn into the folders of the classes."""
    for number in range(count):
        label = number % len(CLASSES)
        kind, suffix = _FORMATS[number % len(_FORMATS)]
        target = folder / CLASSES[label] / f"{number:03}{suffix}"
        target.parent.mkdir(parents=True, exist_ok=True)
        photo = Image.open(ASSETS / _FILES[label]).convert("RGB")
        left, top = 3 * number % 40, 5 * number % 40
        photo = photo.crop((left, top, photo.width - 7 * number % 50, photo.height - number % 30))
        photo.thumbnail((180 + 9 * number, 180 + 4 * number))
        exif = Image.Exif()
        exif[0x0112] = 1 + number % 8
        photo.save(target, kind, exif=exif.tobytes())


def save_turned(path: Path, pixels: np.ndarray, orientation: int = 1) -> None:
    """Write a picture so that the EXIF orientation, 1, 3, 6 or 8, turns it upright."""
    turn = _TURNS[orientation]
    picture, exif = Image.fromarray(pixels), Image.Exif()
    exif[0x0112] = orientation
    path.parent.mkdir(parents=True, exist_ok=True)
    (picture if turn is None else picture.transpose(turn)).save(path, exif=exif.tobytes())
