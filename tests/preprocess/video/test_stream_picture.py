"""The pass from YUV to the resized picture: equal in every bit to converting and then resizing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onestream.preprocess import BadImage, CannotCompile, Definition, Limits
from onestream.preprocess.backends.finish import CpuFinish
from onestream.preprocess.moves import CenterCrop, Letterbox, Pad, Resize
from onestream.preprocess.operations import Decode, Output, Region
from onestream.preprocess.plan import Planner
from onestream.preprocess.video.common.color import ColorRule, Planes, to_rgb_reference
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.common.picture import PictureMaker

UPRIGHT = Orientation()
OUTPUT = Output(layout="NHWC", dtype="uint8")


def noise(size_hw: tuple[int, int], shifts: tuple[int, int], depth: int, seed: int) -> Planes:
    """A frame whose rows are padded, as a decoder's are."""
    random = np.random.default_rng(seed)
    dtype, high = (np.uint8, 256) if depth == 8 else (np.uint16, 1 << depth)
    small = tuple((side + shift) >> shift for side, shift in zip(size_hw, shifts, strict=True))
    y, u, v = (random.integers(0, high, (side[0], side[1] + 5), dtype) for side in (size_hw, small, small))
    return Planes(y, u, v, size_hw, shifts, depth, 2, False)


@given(
    size_hw=st.tuples(st.integers(3, 90), st.integers(3, 90)),
    shifts=st.sampled_from([(1, 1), (0, 1), (0, 0)]),
    depth=st.sampled_from([8, 10]),
    rule=st.builds(ColorRule, matrix=st.sampled_from(["bt601", "bt709"]), range=st.sampled_from(["limited", "full"])),
    geometry=st.sampled_from(
        [
            (Resize(mode="shorter", size=20), CenterCrop(size=(17, 19))),
            (Resize(mode="shorter", size=130), CenterCrop(size=(40, 33))),
            (Resize(mode="exact", size=(31, 12)),),
            (Letterbox(size=(24, 40)),),
            (Resize(mode="shorter", size=17, antialias=False), CenterCrop(size=(17, 19), rounding="truncate")),
        ]
    ),
    seed=st.integers(0, 9),
)
def test_one_pass_gives_the_bits_of_two(
    size_hw: tuple[int, int], shifts: tuple[int, int], depth: int, rule: ColorRule, geometry: tuple, seed: int
) -> None:
    definition = Definition(operations=(Decode(), *geometry, OUTPUT))
    planes = noise(size_hw, shifts, depth, seed)
    finish, plan = CpuFinish(definition), Planner(definition)(size_hw)
    rgb = to_rgb_reference(planes, rule, plan.part)
    found = PictureMaker(definition, rule, Limits()).pixels(planes, UPRIGHT)
    assert np.array_equal(found, finish.finish(rgb, plan))


def test_what_cannot_be_made_is_refused() -> None:
    two = Definition(operations=(Decode(), CenterCrop(size=(40, 40)), Resize(mode="shorter", size=20)))
    with pytest.raises(CannotCompile, match="a stream does one resize, before any crop"):
        PictureMaker(two, ColorRule(), Limits())
    with pytest.raises(CannotCompile, match="a video takes whole pictures; this definition begins with region"):
        PictureMaker(Definition(operations=(Region(of="find"), OUTPUT)), ColorRule(), Limits())
    padded = Definition(operations=(Decode(), Pad(size=(20, 20)), OUTPUT))
    with pytest.raises(BadImage, match="pads to 20x20"):
        PictureMaker(padded, ColorRule(), Limits()).pixels(noise((30, 10), (1, 1), 8, 0), UPRIGHT)
    large = Definition(operations=(Decode(), Resize(mode="longer", size=512), OUTPUT))
    with pytest.raises(BadImage, match="resized by the definition it would have 512x384"):
        PictureMaker(large, ColorRule(), Limits(max_pixels=9999)).pixels(noise((96, 128), (1, 1), 8, 0), UPRIGHT)
