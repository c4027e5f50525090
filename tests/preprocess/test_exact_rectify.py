"""The GPU's perspective transform by a C++ compiler: every bit is the reference's and the CPU's."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from counting_stream import CountingStream
from definition_strategies import definitions
from definitions import AS_IT_IS, LEVELS
from host_gpu import HostDevice, view
from hypothesis import given
from hypothesis import strategies as st
from test_exact_resize import on_gpu
from turned import rectangle

from onestream.preprocess import (
    WHOLE_PICTURE,
    BadImage,
    CannotCompile,
    Definition,
    Limits,
    Region,
    Resize,
    compile_from_picture,
)
from onestream.preprocess.backends import gpu_pictures
from onestream.preprocess.backends.batches import groups
from onestream.preprocess.backends.gpu_pictures import GpuFromPicture
from onestream.preprocess.cuda.device import DeviceArray
from onestream.preprocess.cuda.rectify import Rectify, ToRectify
from onestream.preprocess.geometry import Size, quads_of
from onestream.preprocess.quads import choose

QUAD = Region(of="find", shape="quad", upright=1.5, margin=0.1)
LIMITS = Limits()
SIZES = st.tuples(st.integers(1, 60), st.integers(1, 60))


def quads(corners: list[list[float]]) -> np.ndarray:
    return np.array(corners, np.float32).reshape(-1, 4, 2)


def lines_of(centers: list[tuple[float, float, float]]) -> np.ndarray:
    """Quads of 40 x 12 pixels, turned by an angle."""
    return quads([rectangle((x, y), 40, 12, np.degrees(angle)) for x, y, angle in centers])


LINE = Definition(operations=[QUAD, Resize(mode="height", size=(12, 99))])
THREE = lines_of([(30, 30, 0.1), (20, 40, 1), (30, 20, 3)])


@given(
    # Half of them cut regions and no more, so that every pixel is the transform's.
    definition=st.just(AS_IT_IS) | definitions(),
    shape=st.sampled_from(["box", "quad"]),
    sizes=st.lists(SIZES, min_size=1, max_size=3),
    some=st.tuples(
        st.lists(st.lists(st.floats(-20, 80, width=32), min_size=8, max_size=8), max_size=6).map(quads),
        st.lists(st.tuples(st.floats(0, 60), st.floats(0, 60), st.floats(-3.2, 3.2)), max_size=4).map(lines_of),
    ).map(np.concatenate),
    gap=st.integers(0, 5),
)
def test_regions_of_batches_are_the_references_in_every_bit(
    definition: Definition, shape: Any, sizes: list[Size], some: np.ndarray, gap: int
) -> None:
    """Regions of pictures of any sizes in one batch, and in the next; and the pictures as a whole."""
    region = QUAD.model_copy(update={"shape": shape, "color": definition.color})
    of_regions = Definition(operations=[region, *definition.operations[1:]])
    chosen_quads = [some[choose(of_regions, some, size, limits=LIMITS).indices] for size in sizes]
    run, run_whole = (compile_from_picture(one, limits=LIMITS).run for one in (of_regions, definition))
    stream = HostDevice().stream()
    on_the_gpu, whole_on_the_gpu = (GpuFromPicture(one, LIMITS, stream=stream) for one in (of_regions, definition))
    for seed in range(2):
        chosen = np.random.default_rng(seed)
        pictures = [chosen.integers(0, 256, (*size, 3)).astype(np.uint8) for size in sizes]
        on_device = [on_gpu(picture, stream, gap=gap) for picture in pictures]
        expected = [sample for picture, few in zip(pictures, chosen_quads, strict=True) for sample in run(picture, few)]
        for picture in pictures:
            try:
                expected.append(run_whole(picture))
            except BadImage as error:
                expected.append(error)
        seen = [*on_the_gpu.enqueue(on_device, chosen_quads), *whole_on_the_gpu.enqueue(on_device)]
        stream.sync()
        for sample, known in zip(seen, expected, strict=True):
            if isinstance(known, BadImage):
                assert str(sample) == str(known)
            else:
                np.testing.assert_array_equal(view(sample), known, strict=True)


def test_all_regions_of_a_batch_take_three_launches_and_no_wait() -> None:
    stream = CountingStream()
    run = GpuFromPicture(LINE, LIMITS, stream=stream)
    pictures = [on_gpu(np.zeros((60, 60, 3), np.uint8), stream, gap=0) for _ in range(3)]
    seen = run.enqueue(pictures, [THREE, THREE[:0], THREE[1:]])
    assert [grid[2] for grid in stream.launches] == [5, 5, 5]
    assert stream.device.syncs == 0
    assert len(seen) == 5
    assert run.enqueue(pictures, [THREE[:0]] * 3) == []
    assert len(stream.launches) == 3


def test_wrong_use_is_refused_by_name() -> None:
    stream = HostDevice().stream()
    picture = on_gpu(np.zeros((60, 60, 3), np.uint8), stream, gap=0)
    of_regions = GpuFromPicture(Definition(operations=[QUAD]), LIMITS, stream=stream)
    with pytest.raises(ValueError, match="begins with region; quads go with region"):
        of_regions.enqueue([picture])
    with pytest.raises(ValueError, match=r"quads\[0\].*cannot be cut"):
        of_regions.enqueue([picture], [np.zeros((1, 4, 2), np.float32)])
    with pytest.raises(ValueError, match="begins with decode"):
        GpuFromPicture(WHOLE_PICTURE, LIMITS, stream=stream).enqueue([picture], [np.zeros((0, 4, 2), np.float32)])
    twice = Definition(operations=[QUAD, Resize(mode="exact", size=(9, 9)), Resize(mode="exact", size=(8, 8))])
    with pytest.raises(CannotCompile, match="one resize"):
        GpuFromPicture(twice, LIMITS, stream=stream)
    planar = np.zeros((3, 9, 9), np.uint8)
    pixels = DeviceArray(planar.ctypes.data, (9, 9, 3), planar.dtype, stream.handle, planar, (9, 1, 81))
    with pytest.raises(ValueError, match="interleaved"):
        Rectify(stream).enqueue([ToRectify(pixels, np.eye(3), stream.allocate((4, 4, 3), np.uint8))])


def test_samples_of_one_size_lie_side_by_side_in_pieces_that_a_network_takes() -> None:
    """Whatever lies between them in the batch; a sample that cannot be takes no place."""
    stream = HostDevice().stream()
    limited = Limits(max_pixels=4000)
    line = Definition(operations=[Region(of="find"), Resize(mode="height", size=(12, 999)), LEVELS])
    pictures = [on_gpu(np.full((60, 300, 3), level, np.uint8), stream, gap=0) for level in (10, 20)]
    square, wide, too_wide = (quads_of(np.array([[0, 0, width, 6]], np.float32)) for width in (6, 12, 290))
    quads = [np.concatenate([square, wide, square, too_wide]), np.concatenate([wide, square, square])]
    run = GpuFromPicture(line, limited, stream=stream, side_by_side=3)
    seen = run.enqueue(pictures, quads)
    assert isinstance(seen[3], BadImage)
    stream.sync()
    expected = [(12, 12), (12, 24), (12, 12), None, (12, 24), (12, 12), (12, 12)]
    assert [None if isinstance(one, BadImage) else one.shape[:2] for one in seen] == expected
    assert [int(view(one)[0, 0, 0]) for one in seen if not isinstance(one, BadImage)] == [10, 10, 10, 20, 20, 20]
    squares, wides = [seen[at] for at in (0, 2, 5, 6)], [seen[at] for at in (1, 4)]
    for piece in (squares[:3], squares[3:], wides):
        assert len({id(one.owner) for one in piece}) == 1
        assert [one.pointer - piece[0].pointer for one in piece] == [row * piece[0].nbytes for row in range(len(piece))]
    assert squares[3].owner is not squares[0].owner


def test_regions_that_do_not_fit_into_memory_together_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = CountingStream()
    picture = np.random.default_rng(0).integers(0, 256, (60, 60, 3)).astype(np.uint8)
    expected = compile_from_picture(LINE, limits=LIMITS).run(picture, THREE)
    # Each takes 42x14 pixels.
    monkeypatch.setattr(gpu_pictures, "groups", partial(groups, max_pixels=1200))
    run = GpuFromPicture(LINE, LIMITS, stream=stream)
    on_device = on_gpu(picture, stream, gap=0)
    seen = run.enqueue([on_device], [THREE])
    assert [grid[2] for grid in stream.launches] == [2, 2, 1, 1, 3]
    stream.sync()
    for sample, known in zip(seen, expected, strict=True):
        np.testing.assert_array_equal(view(sample), known)
