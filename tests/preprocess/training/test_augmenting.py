"""What each operation draws: its distribution, what it equals in torchvision, and on what it depends."""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision_alone
from definitions import in_levels
from image_files import encode
from image_sets import DEFINITION, stretched
from PIL import Image
from sample_images import photo

from onestream.preprocess import BadImage, CannotCompile, Decode, Definition, Letterbox, Resize, compile
from onestream.preprocess.backends.table import BACKENDS
from onestream.preprocess.changes import AnyChange, Erase, Posterize, Saturation, Solarize
from onestream.preprocess.projection import Projection
from onestream.preprocess.training import Augmentation, ImageLoader
from onestream.preprocess.training.augmentation import AnyAugmentationOperation
from onestream.preprocess.variation import Variation

torchvision_alone.load()
from torchvision.transforms import v2  # noqa: E402
from torchvision.transforms.v2 import InterpolationMode, functional  # noqa: E402

SQUARE, BOXED = stretched(100, 100), in_levels(Letterbox(size=(120, 100), value=114))


def draws(operation: dict[str, Any], count: int = 2000, size: tuple[int, int] = (100, 100)) -> list[Variation]:
    chain = Augmentation([{"probability": 1, **operation}])
    return [chain.draw(size, seed=4, epoch=0, index=index, definition=SQUARE) for index in range(count)]


def spread(values: list[float]) -> tuple[float, float, float]:
    return min(values), float(np.median(values)), max(values)


def changes(operation: dict[str, Any], count: int = 2000) -> list[AnyChange]:
    return [change for variation in draws(operation, count) for change in variation.changes]


def test_each_operation_happens_with_its_probability() -> None:
    (union, _) = typing.get_args(AnyAugmentationOperation)
    assert len(typing.get_args(union)) == 30
    plain = Augmentation([]).draw((80, 90), seed=0, epoch=0, index=0, definition=SQUARE)
    settings: dict[str, dict[str, Any]] = {
        "rotation": {"degrees": (5, 10)}, "padded_crop": {"size": (50, 50), "padding": 0},
        "linear_color": {"hue": 0.1}, "color_jitter": {"brightness": 0.1}, "affine": {"scale": (0.5, 0.9)},
    }  # fmt: skip
    others = (
        "flip perspective scale_jitter warp background grayscale blur noise jpeg erase posterize solarize sharpness "
        "autocontrast equalize invert"
    )
    for name, setting in {**settings, **{name: {} for name in others.split()}}.items():
        chain = Augmentation([{"op": name, "probability": 0.3, **setting}])
        drawn = [chain.draw((80, 90), seed=0, epoch=0, index=index, definition=SQUARE) for index in range(400)]
        # 120 of 400, give or take four standard deviations of 9.2.
        assert abs(sum(one != plain for one in drawn) - 120) < 37, name


def matrix_of(variation: Variation, size: tuple[int, int]) -> np.ndarray:
    """From the picture to the canvas, both of ``size``, (x, y) from the middle."""
    matrix = np.linalg.inv(Projection(size, size, variation.corners).matrix)
    to_middle = np.array([[1, 0, size[1] / 2], [0, 1, size[0] / 2], [0, 0, 1]])
    moved = np.linalg.inv(to_middle) @ matrix @ to_middle
    return moved / moved[2, 2]


def test_rotations_are_uniform_and_keep_lengths() -> None:
    found = [matrix_of(one, (100, 100)) for one in draws({"op": "rotation", "degrees": [-30, 60]})]
    # Counterclockwise, y down.
    angles = [math.degrees(math.atan2(-one[1, 0], one[0, 0])) for one in found]
    low, middle, high = spread(angles)
    assert -30 <= low < -29.5
    assert 59.5 < high <= 60
    # The median of 2000 uniform draws over 90 degrees errs by 90 / 2 / sqrt(2000) = 1.
    assert abs(middle - 15) < 4
    np.testing.assert_allclose([abs(np.linalg.det(one[:2, :2])) for one in found], 1, atol=1e-4)


AFFINE = {"op": "affine", "degrees": [20, 20], "scale": [0.8, 0.8], "shear_x": [12, 12], "shear_y": [-7, -7]}


@pytest.mark.parametrize(
    ("operation", "by_torchvision"),
    [
        ({"op": "rotation", "degrees": [27, 27]}, lambda image, **how: functional.rotate(image, 27, **how)),
        (AFFINE, lambda image, **how: functional.affine(image, 20, [0, 0], 0.8, [12, -7], **how)),
        ({"op": "flip"}, lambda image, **_: functional.horizontal_flip(image)),
        ({"op": "flip", "axis": "vertical"}, lambda image, **_: functional.vertical_flip(image)),
    ],
    ids=["rotation", "affine", "horizontal flip", "vertical flip"],
)
def test_geometry_is_torchvisions(operation: dict[str, Any], by_torchvision: Callable[..., Image.Image]) -> None:
    image = photo("coffee").resize((150, 110))
    definition = stretched(110, 150)
    chain = Augmentation([{**operation, "probability": 1}])
    variation = chain.draw((110, 150), seed=0, epoch=0, index=0, definition=definition)
    (seen,) = compile(definition, varied=True).run([encode(image, "PNG")], [lambda _: variation])
    expected = np.asarray(by_torchvision(image, interpolation=InterpolationMode.BILINEAR), np.int16)
    # Both filled the corners with 0; beside that border another filter makes some levels of difference.
    inside = (expected.min(axis=2) > 0) & (np.asarray(seen).min(axis=2) > 0)
    assert inside.mean() > 0.4
    difference = np.abs(np.subtract(seen, expected, dtype=np.int16))[inside]
    assert difference.mean() < 3
    # A shift by one pixel, the smallest mistake there is, is told apart.
    shifted = np.abs(np.subtract(np.roll(seen, 1, axis=1), expected, dtype=np.int16))[inside]
    assert difference.mean() < shifted.mean() / 2


def test_perspective_moves_corners_inwards_up_to_its_distortion() -> None:
    corners = np.array([(-50, -50, 1), (50, -50, 1), (50, 50, 1), (-50, 50, 1)])
    inwards = []
    for variation in draws({"op": "perspective", "distortion": 0.4}, 1000):
        places = corners @ matrix_of(variation, (100, 100)).T
        inwards.append(50 - np.abs(places[:, :2] / places[:, 2:]))
    low, middle, high = spread(np.array(inwards).ravel().tolist())
    # 8,000 draws from 0 to 20 pixels; the corners are rounded to 2^-16 pixels.
    assert -0.01 < low < 0.05
    assert abs(middle - 10) < 0.5
    assert 19.9 < high < 20.01


@pytest.mark.parametrize(("color", "fill"), [("rgb", (124, 116, 104)), ("bgr", (124, 116, 104)), ("gray", 117)])
def test_erased_rectangles_have_a_colour_that_suits_the_picture(color: Any, fill: Any) -> None:
    definition = Definition(operations=[Decode(color=color), Resize(mode="exact", size=(50, 50))])
    chain = Augmentation([{"op": "erase", "probability": 1, "fill": [124, 116, 104]}])
    (change,) = chain.draw((60, 60), seed=0, epoch=0, index=0, definition=definition).changes
    assert isinstance(change, Erase)
    # 0.299 * 124 + 0.587 * 116 + 0.114 * 104 is 117.02.
    assert change.fill == fill


def test_a_jitter_draws_torchvisions_factors_in_any_order() -> None:
    strengths = {"brightness": 0.5, "contrast": 1.5, "saturation": 0.2, "hue": 0.25}
    drawn = draws({"op": "color_jitter", **strengths})
    orders = {tuple(change.op for change in one.changes) for one in drawn}
    assert len(orders) == 24
    factors: dict[str, list[float]] = {}
    for one in drawn:
        for change in one.changes:
            factors.setdefault(change.op, []).append(getattr(change, "turns" if change.op == "hue" else "factor"))
    by_torchvision = v2.ColorJitter(**strengths)
    for name, values in factors.items():
        low, high = getattr(by_torchvision, name)
        middle = (low + high) / 2
        # Of 2,000 draws from a width of 1, one comes within 0.005 of each end, and the median errs by 0.011.
        assert spread(values) == pytest.approx((low, middle, high), abs=0.05 * (high - low))
    assert [change.op for change in changes({"op": "color_jitter", "hue": 0.1}, 5)] == ["hue"] * 5
    assert {change.factor for change in changes({"op": "grayscale"}, 5) if isinstance(change, Saturation)} == {0}


POLICIES = [
    ({"op": "trivial_augment"}, v2.TrivialAugmentWide, None),
    ({"op": "rand_augment", "count": 1, "magnitude": 9}, v2.RandAugment, 9),
    ({"op": "rand_augment", "count": 1, "magnitude": 30}, v2.RandAugment, 30),
]
NAMES = {"Color": "saturation", "AutoContrast": "autocontrast"}


@pytest.mark.parametrize(("operation", "torchvisions", "magnitude"), POLICIES)
def test_policies_draw_torchvisions_acts_with_its_strengths(
    operation: dict[str, Any], torchvisions: Any, magnitude: int | None
) -> None:
    expected: set[tuple[str, float]] = set()
    for name, (strengths, signed) in torchvisions._AUGMENTATION_SPACE.items():
        values = strengths(31, 100, 100)
        # Torch counts in float32, in which 16 may be 15.999999.
        bins = [0.0] if values is None else [round(float(value), 5) for value in values]
        if magnitude is not None and values is not None:
            bins = bins[magnitude : magnitude + 1]  # all with one strength
        for value in bins:
            for sign in (1, -1) if signed else (1,):
                expected.add(_key(name, sign * value))
    drawn = draws(operation, 9000 if magnitude is None else 2000)
    seen = {_act(one) for one in drawn}
    assert seen == expected
    # 14 acts, equally likely: a fourteenth are those that change nothing by name.
    erased = sum(_act(one)[0] == "equalize" for one in drawn) / len(drawn)
    assert erased == pytest.approx(1 / 14, abs=4 * math.sqrt(1 / 14 / len(drawn)))


def _key(name: str, value: float) -> tuple[str, float]:
    if name in ("TranslateX", "TranslateY"):
        value = float(int(value))
    if name in ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Identity"):
        kind = name if value else "Identity"
        return kind, round(value if kind != "Identity" else 0.0, 3)
    if name == "Posterize":
        return "posterize", value
    if name == "Solarize":
        return "solarize", math.ceil(round(255 * value, 1))
    if name in ("AutoContrast", "Equalize"):
        return name.lower(), 0.0
    return NAMES.get(name, name.lower()), round(1 + value, 4)


def _act(variation: Variation) -> tuple[str, float]:
    if variation.changes:
        (change,) = variation.changes
        if isinstance(change, Posterize):
            return "posterize", change.bits
        if isinstance(change, Solarize):
            return "solarize", change.threshold
        return change.op, round(getattr(change, "factor", 0.0), 4)
    # From the canvas to the picture, about the top left corner.
    matrix = Projection((100, 100), (100, 100), variation.corners).matrix
    matrix = matrix / matrix[2, 2]
    if abs(matrix[0, 0] - 1) > 1e-5:
        return "Rotate", round(math.degrees(math.atan2(matrix[0, 1], matrix[0, 0])) * -1, 3)
    for name, value in (
        ("ShearX", matrix[0, 1]), ("ShearY", matrix[1, 0]), ("TranslateX", -matrix[0, 2]), ("TranslateY", -matrix[1, 2])
    ):  # fmt: skip
        if abs(value) > 1e-5:
            return name, round(value, 3)
    return "Identity", 0.0


def test_a_chain_without_a_box_ends_in_the_definitions_geometry() -> None:
    """So a letterbox stays one, with its own border; and what is drawn moves within it."""
    file = encode(photo("coffee"), "PNG")
    size = photo("coffee").size[::-1]
    still = Augmentation([{"op": "linear_color"}]).draw(size, seed=0, epoch=0, index=0, definition=BOXED)
    (varied,) = compile(BOXED, varied=True).run([file], [lambda _: still])
    (served,) = compile(BOXED).run([file])
    assert not isinstance(varied, BadImage)
    assert not isinstance(served, BadImage)
    border = (served == 114).all(axis=2)
    assert 0.2 < border.mean() < 0.8
    assert ((varied == 114).all(axis=2) == border).mean() > 0.98
    # The same picture, resampled by another filter.
    assert np.abs(np.subtract(varied, served, dtype=np.int16)).mean() < 3
    assert Augmentation([{"op": "flip"}], fill=3).draw(size, seed=0, epoch=0, index=0, definition=BOXED).fill == 3


def test_where_the_horizon_would_be_seen_what_is_not_affine_is_left_out() -> None:
    chain = Augmentation([{"op": "perspective", "distortion": 0.6, "probability": 1}] * 6)
    drawn = [chain.draw((80, 400), seed=0, epoch=0, index=index, definition=BOXED) for index in range(300)]
    plain = Augmentation([]).draw((80, 400), seed=0, epoch=0, index=0, definition=BOXED)
    assert 0 < sum(one == plain for one in drawn) < 300


def test_a_gpu_refuses_what_its_backend_lacks_by_name(photos: Path) -> None:
    moves, hue = {"op": "rotation"}, {"op": "color_jitter", "hue": 0.1, "contrast": 0.1}
    chain = Augmentation([{"op": "box"}, {"op": "flip"}, moves, {"op": "jpeg"}, hue, moves])
    dali, cvcuda = BACKENDS["dali"].varies_on_gpu, BACKENDS["cvcuda"].varies_on_gpu
    assert chain.lacking(dali) == ("rotation", "jpeg", "color_jitter")
    assert chain.lacking(cvcuda) == ("jpeg",)
    for name in ("mosaic", "mixup", "cutmix", "warp", "background"):
        assert all(Augmentation([{"op": "box"}, {"op": name}]).lacking(can) == (name,) for can in (dali, cvcuda))
    lacked_by_dali: list[tuple[list[dict[str, Any]], tuple[str, ...]]] = [
        ([{"op": "box"}, {"op": "flip"}, {"op": "flip", "axis": "vertical"}, {"op": "linear_color"}], ()),
        ([{"op": "flip"}], ("a chain without box",)),
        ([{"op": "box"}, {"op": "linear_color"}] * 2, ("a second box", "a second linear_color")),
        ([{"op": "box", "probability": 0.5}], ("box",)),
    ]
    for operations, lacking in lacked_by_dali:
        assert (Augmentation(operations).lacking(dali), Augmentation(operations).lacking(cvcuda)) == (lacking, ())
    options: dict[str, Any] = {"batch_size": 2, "train": True, "augmentation": chain, "device": "gpu"}
    for backend, named in (("dali", "rotation, jpeg, color_jitter"), ("cvcuda", "jpeg")):
        with pytest.raises(CannotCompile, match=f"{backend} on a GPU lacks {named}; device='cpu' can"):
            ImageLoader(DEFINITION, photos, backend=backend, **options)


def test_the_page_shows_one_chain_as_a_program_and_as_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "augmentation.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    (file, _) = re.findall(r"^```yaml\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)
    shown, as_json = capsys.readouterr().out.splitlines()
    assert Variation.model_validate_json(as_json) == names["variation"]
    assert shown == str(names["variation"])
    assert Augmentation.from_yaml(file) == Augmentation(names["chain"].operations, fill=114)


def test_the_pages_defaults_are_the_operations_own() -> None:
    page = (Path(__file__).parents[3] / "docs" / "augmentation.md").read_text(encoding="utf-8")
    (union, _) = typing.get_args(AnyAugmentationOperation)
    for operation in typing.get_args(union):
        name = operation.model_fields["op"].default
        (drawn,) = re.findall(rf"^\| `{name}` \| (.*?) \| ", page, flags=re.MULTILINE)
        default = operation.model_fields["probability"].default
        assert re.findall(r"^probability ([\d.]+)", drawn) == ([] if default == 1 else [str(default)])
        for field, value in re.findall(r"`(\w+)` (?:\(|\[)([\d./]+)", drawn):
            default = operation.model_fields[field].default
            first = default[0] if isinstance(default, tuple) else default
            assert float(Fraction(value)) == pytest.approx(first), (name, field)
