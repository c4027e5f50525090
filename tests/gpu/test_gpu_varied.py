"""Varied pictures on a GPU: the reference's in every bit, but for what decodes a JPEG; and the loader that trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_files import encoded
from varied_tolerances import varied_tolerance

from onestream.preprocess import Decode, Definition, Normalize, Output, Resize, compile
from onestream.preprocess.training.augmentation import Augmentation

CHAIN = Augmentation(
    [
        {"op": "box", "area": [0.3, 1.0]},
        {"op": "flip"},
        {"op": "flip", "axis": "vertical"},
        {"op": "rotation", "degrees": [-40, 40], "probability": 0.5},
        {"op": "perspective", "probability": 0.3},
        {"op": "color_jitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
        {"op": "linear_color", "hue": 0.1, "probability": 0.3},
        {"op": "trivial_augment"},
        {"op": "rand_augment"},
        {"op": "erase"},
    ]
)
BOXES = Augmentation([{"op": "box"}, {"op": "flip"}, {"op": "flip", "axis": "vertical"}])


def drawn(chain: Augmentation, definition: Definition, images: list[Any]) -> list[Any]:
    return [
        chain.draw((image.height, image.width), seed=5, epoch=0, index=index, definition=definition)
        for index, image in enumerate(images)
    ]


@pytest.mark.parametrize("color", ["rgb", "bgr", "gray"])
def test_what_is_no_jpeg_varies_as_the_reference_in_every_bit(color: Any, photos: dict[str, Any], record: Any) -> None:
    mean = (0.4,) if color == "gray" else (0.485, 0.456, 0.406)
    definition = Definition(
        operations=[
            Decode(color=color),
            Resize(mode="exact", size=(120, 160), filter="bicubic"),
            Normalize(mean=mean, std=tuple(0.225 for _ in mean)),
        ]
    )
    images = [
        photo.resize((300 + 31 * (at % 7), 260 - 17 * (at % 11))) for at, photo in enumerate([*photos.values()] * 2)
    ]
    files, values = [encoded(image, "PNG") for image in images], drawn(CHAIN, definition, images)
    varies = [lambda _, one=one: one for one in values]
    compiled = compile(definition, backend="cvcuda", device="gpu", max_batch_size=16, varied=True)
    seen, expected = compiled.run(files, varies), compile(definition, varied=True).run(files, varies)
    compiled.close()
    for one, other, variation in zip(seen, expected, values, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=str(variation))
    record(f"cvcuda, varied, {color}: values that differ, of what is no JPEG", 0, "0")


@pytest.mark.parametrize("backend", ["cvcuda", "dali"])
def test_varied_jpegs_are_near_the_references(backend: Any, photos: dict[str, Any], record: Any) -> None:
    definition = Definition(
        operations=[Decode(), Resize(mode="exact", size=(120, 160)), Output(layout="NHWC", dtype="uint8")]
    )
    images = [*photos.values()]
    files, varies = (
        [encoded(image, "JPEG", quality=90) for image in images],
        [lambda _, one=one: one for one in drawn(BOXES, definition, images)],
    )
    compiled = compile(definition, backend=backend, device="gpu", max_batch_size=16, varied=True)
    seen, expected = compiled.run(files, varies), compile(definition, varied=True).run(files, varies)
    compiled.close()
    one, other = np.stack(seen), np.stack(expected)  # type: ignore[arg-type]
    mean, allowed = float(np.abs(one.astype(int) - other).mean()), varied_tolerance(backend, "jpeg")
    record(f"{backend}, varied: mean difference, levels", mean, f"≤ {allowed.mean_level:g}")
    assert allowed.allows(one, other)
