"""From YUV to the resized picture in one pass, on a CPU and on a GPU: equal in every bit to converting and resizing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_frames import a_frame, a_surface
from host_gpu import HostDevice, view
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from onestream.preprocess import BadImage, CannotCompile, Definition, Limits
from onestream.preprocess.backends.finish import CpuFinish
from onestream.preprocess.cuda.resize import ExactResize, ToResize
from onestream.preprocess.geometry import Window
from onestream.preprocess.moves import CenterCrop, Letterbox, Pad, Resize
from onestream.preprocess.operations import Decode, Output, Region
from onestream.preprocess.plan import Plan, Planner
from onestream.preprocess.video.common.color import ColorRule, Planes, to_rgb_reference
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.common.picture import PictureMaker
from onestream.preprocess.video.gpu.surfaces import LAYOUTS, yuv_format

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
    for operations, said in (
        ((Decode(), CenterCrop(size=(9, 9)), Resize(mode="shorter", size=5)), "a stream does one resize, before any"),
        ((Region(of="find"), OUTPUT), "a video takes whole pictures; this definition begins with region"),
    ):
        with pytest.raises(CannotCompile, match=said):
            PictureMaker(Definition(operations=operations), ColorRule(), Limits())
    for move, size_hw, said in (
        (Pad(size=(20, 20)), (30, 10), "pads to 20x20"),
        (Resize(mode="longer", size=512), (96, 128), "resized by the definition it would have 512x384"),
    ):
        maker = PictureMaker(Definition(operations=(Decode(), move, OUTPUT)), ColorRule(), Limits(max_pixels=9999))
        with pytest.raises(BadImage, match=said):
            maker.pixels(noise(size_hw, (1, 1), 8, 0), UPRIGHT)


RESIZES = (None, *(Resize(mode="exact", size=(7, 40), filter=name) for name in ("bilinear", "bicubic", "nearest")))


FRAMES = st.builds(
    a_frame,
    st.tuples(st.integers(1, 40), st.integers(1, 70)),
    st.sampled_from(sorted(LAYOUTS)),
    seed=st.integers(0, 99),
)
MATRICES, RANGES = st.sampled_from(["bt601", "bt709", "bt2020"]), st.sampled_from(["limited", "full"])


@given(
    planes=FRAMES,
    rule=st.builds(ColorRule, matrix=MATRICES, range=RANGES),
    orientation=st.builds(Orientation, st.booleans(), st.booleans(), st.booleans()),
    resize=st.sampled_from(RESIZES),
    channels=st.sampled_from([3, 1]),
)
def test_the_resize_reads_a_surface_as_the_picture_that_the_definition_makes_of_it(
    planes: Planes, rule: ColorRule, orientation: Orientation, resize: Resize | None, channels: int
) -> None:
    stream: Any = HostDevice().stream()
    surface = a_surface(planes, stream)
    shown = Image.fromarray(orientation.turn(to_rgb_reference(planes, rule)))
    whole = Window(0, 0, shown.height, shown.width)
    resized_hw = whole.size_hw if resize is None else resize.resized(whole.size_hw)
    plan = Plan(whole.size_hw, whole, resized_hw, Window(0, 0, *resized_hw), (0, 0), resized_hw, whole)
    canvas = stream.allocate((*resized_hw, channels), np.uint8)
    resizer = ExactResize(resize, channels=channels, stream=stream)
    resizer.enqueue([ToResize(surface.memory, plan, canvas, yuv_format(surface, rule, orientation))])
    stream.sync()
    shown = shown if channels == 3 else shown.convert("L")
    expected = np.asarray(shown if resize is None else resize.apply(shown)).reshape(canvas.shape)
    assert np.array_equal(view(canvas), expected)
    back = surface.to_host(stream)
    for seen, plane in ((back.y, planes.y), (back.u, planes.u), (back.v, planes.v)):
        assert np.array_equal(seen[:, : plane.shape[1]], plane)
