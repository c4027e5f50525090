"""The GPU's resize by a C++ compiler: Pillow's every bit, memory, launches, tables; by NVRTC for every GPU."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import numpy.typing as npt
import pytest
from counting_stream import CountingStream
from host_gpu import HostDevice, HostStream, view
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from same_samples import assert_same

from onestream.postprocess.matte.kernels_gpu import KERNELS as MATTE_KERNELS
from onestream.postprocess.matte.kernels_gpu import NAMES as MATTE_NAMES
from onestream.postprocess.planes_gpu import TAKE
from onestream.preprocess import Resize
from onestream.preprocess.cuda import tables
from onestream.preprocess.cuda.change_kernels import CHANGE_KERNELS
from onestream.preprocess.cuda.device import DeviceArray
from onestream.preprocess.cuda.reading import Reading
from onestream.preprocess.cuda.resample_kernels import RESAMPLE_KERNELS
from onestream.preprocess.cuda.resize import ExactResize, ToResize
from onestream.preprocess.cuda.resize_kernels import KERNELS
from onestream.preprocess.cuda.staging import Staging
from onestream.preprocess.geometry import Size, Window
from onestream.preprocess.plan import Plan

KINDS = ("bilinear", "bicubic", "lanczos", "nearest", "not antialiased")
SIDES = st.integers(1, 90) | st.sampled_from([1, 2, 300])
POISON = 0xA5


def resize_of(kind: str, size_hw: Size) -> Resize:
    if kind == "not antialiased":
        return Resize(mode="exact", size=size_hw, antialias=False)
    return Resize(mode="exact", size=size_hw, filter=kind)  # type: ignore[arg-type]


def content(kind: str, height: int, width: int, seed: int) -> np.ndarray:
    """Pictures that meet each rounding otherwise: noise, hard edges (where filters overshoot), slopes, one level."""
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3))
    if kind == "edges":
        noise = (noise > 127) * 255
    if kind == "slope":
        noise = np.add.outer(np.arange(height), np.arange(width))[:, :, None] * np.array([1, 2, 3]) + noise // 64
    if kind == "flat":
        noise[:] = seed
    return (noise % 256).astype(np.uint8)


def on_gpu(pixels: np.ndarray, stream: HostStream, *, gap: int, before: int = 0) -> DeviceArray:
    """Decoded pixels whose rows have a gap between them, as decoders may leave it, after ``before`` other bytes."""
    height, width, channels = pixels.shape
    pitch = width * channels + gap
    memory = np.full(before + height * pitch, POISON, np.uint8)
    memory[before:].reshape(height, pitch)[:, : width * channels] = pixels.reshape(height, -1)
    return DeviceArray(
        memory.ctypes.data + before, pixels.shape, np.dtype(np.uint8), stream.handle, memory, (pitch, channels, 1)
    )


def expected(pixels: np.ndarray, resize: Resize | None, placement: Plan, channels: int) -> np.ndarray:
    """The reference's canvas, poisoned where the window leaves it free."""
    image = Image.fromarray(pixels).convert("RGB" if channels == 3 else "L")
    image = image if resize is None else resize.apply(image)
    whole = np.asarray(image).reshape(image.height, image.width, channels)
    canvas = np.full((*placement.canvas_hw, channels), POISON, np.uint8)
    canvas[Window(*placement.offset, *placement.window.size_hw).slices] = whole[placement.window.slices]
    return canvas


def planned(source_hw: Size, resized_hw: Size, window: Window, offset: Size, canvas_hw: Size) -> Plan:
    return Plan(source_hw, Window(0, 0, *source_hw), resized_hw, window, offset, canvas_hw, None)


@st.composite
def plans(draw: st.DrawFn, *, resizes: bool = True) -> Plan:
    source = draw(st.tuples(SIDES, SIDES))
    resized = draw(st.tuples(SIDES, SIDES)) if resizes else source
    top, left = (draw(st.integers(0, side - 1)) for side in resized)
    window = Window(top, left, draw(st.integers(1, resized[0] - top)), draw(st.integers(1, resized[1] - left)))
    *offset, down, right = draw(st.tuples(*[st.integers(0, 3)] * 4))
    canvas = (offset[0] + window.height + down, offset[1] + window.width + right)
    return planned(source, resized, window, tuple(offset), canvas)


def whole(source_hw: Size, resized_hw: Size) -> Plan:
    return planned(source_hw, resized_hw, Window(0, 0, *resized_hw), (0, 0), resized_hw)


def run(
    resizer: ExactResize, stream: HostStream, pictures: list[np.ndarray], chosen: list[Plan], channels: int
) -> list[np.ndarray]:
    """One batch; the canvases as they come."""
    canvases = [stream.allocate((*placement.canvas_hw, channels), np.uint8) for placement in chosen]
    sources = [on_gpu(pixels, stream, gap=at * 5 % 3, before=at * 3 % 16) for at, pixels in enumerate(pictures)]
    resizer.enqueue([ToResize(*item) for item in zip(sources, chosen, canvases, strict=True)])
    stream.sync()
    return [view(canvas) for canvas in canvases]


@given(placement=plans(resizes=False), channels=st.sampled_from([3, 1]), seed=st.integers(0, 1000))
def test_without_a_resize_windows_are_copied(placement: Plan, channels: int, seed: int) -> None:
    stream = HostDevice().stream()
    pixels = content("noise", *placement.source_hw, seed)
    (seen,) = run(ExactResize(None, channels=channels, stream=stream), stream, [pixels], [placement], channels)
    np.testing.assert_array_equal(seen, expected(pixels, None, placement, channels))


# The least and the most enlargement, and sizes whose passes come in another order, one picture alone among them.
SINGLE = [whole((900, 3), (1, 2))]
SEVERAL = [whole((3, 900), (7, 1)), whole((1, 1), (90, 90)), whole((400, 90), (40, 80))]
# A tile and a pixel more or less, in both orders; lines that are staged 64 at once, 32, and in pieces.
TILES = [
    whole((70, 260), (33, 64)), whole((70, 700), (33, 64)), whole((70, 1200), (33, 64)),
    whole((1200, 70), (31, 65)), whole((32, 257), (32, 32)), whole((5, 5), (97, 33)),
]  # fmt: skip


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("kind", KINDS)
@given(
    chosen=st.lists(plans(), min_size=1, max_size=5),
    picture=st.sampled_from(["noise", "edges", "slope"]),
    seed=st.integers(0, 1000),
)
@example(chosen=SINGLE, picture="edges", seed=0)
@example(chosen=SEVERAL, picture="edges", seed=1)
@example(chosen=SEVERAL, picture="noise", seed=2)
@example(chosen=TILES, picture="noise", seed=3)
def test_every_bit_of_a_batch_is_the_references(
    kind: str, channels: int, chosen: list[Plan], picture: str, seed: int
) -> None:
    """Sizes of their own, both orders of the passes among them, and the same size twice."""
    several = [*chosen, whole((40, 30), (20, 25)), whole((30, 40), (25, 20)), chosen[0]]
    # One resizer has one filter; the size it asks for is the placement's.
    stream = HostDevice().stream()
    resizer = ExactResize(resize_of(kind, (1, 1)), channels=channels, stream=stream)
    for order in (chosen, several, several[::-1]):
        pictures = [content(picture, *placement.source_hw, seed + at) for at, placement in enumerate(order)]
        seen = run(resizer, stream, pictures, order, channels)
        for one, pixels, placement in zip(seen, pictures, order, strict=True):
            known = expected(pixels, resize_of(kind, placement.resized_hw), placement, channels)
            np.testing.assert_array_equal(one, known)


def test_a_picture_of_which_nothing_is_seen_leaves_its_canvas_alone() -> None:
    stream = HostDevice().stream()
    unseen = planned((9, 9), (9, 9), Window(0, 0, 0, 0), (0, 0), (4, 5))
    seen = whole((9, 9), (4, 4))
    pixels = content("noise", 9, 9, 0)
    for kind in ("bilinear", "nearest"):
        resizer = ExactResize(resize_of(kind, (4, 4)), channels=3, stream=stream)
        free, filled = run(resizer, stream, [pixels, pixels], [unseen, seen], 3)
        assert (free == POISON).all()
        np.testing.assert_array_equal(filled, expected(pixels, resize_of(kind, (4, 4)), seen, 3))
        (free,) = run(resizer, stream, [pixels], [unseen], 3)
        assert (free == POISON).all()


def test_pixels_of_another_size_than_the_header_said_are_not_read() -> None:
    stream = HostDevice().stream()
    resizer = ExactResize(resize_of("bilinear", (4, 4)), channels=3, stream=stream)
    with pytest.raises(ValueError, match=r"\(9, 8, 3\).*for a plan of \(9, 9\)"):
        run(resizer, stream, [content("noise", 9, 8, 0)], [whole((9, 9), (4, 4))], 3)
    planar = np.zeros((3, 9, 9), np.uint8)
    pixels = DeviceArray(planar.ctypes.data, (9, 9, 3), planar.dtype, stream.handle, planar, (9, 1, 81))
    with pytest.raises(ValueError, match="interleaved"):
        resizer.enqueue([ToResize(pixels, whole((9, 9), (4, 4)), stream.allocate((4, 4, 3), np.uint8))])


def test_a_batch_takes_one_launch_one_upload_and_no_memory_once_its_sizes_were_seen() -> None:
    stream = CountingStream()
    resizer = ExactResize(resize_of("bicubic", (1, 1)), channels=3, stream=stream)
    chosen = [whole((50 + at, 60), (20, 24)) for at in range(8)]
    pixels = [on_gpu(content("noise", *placement.source_hw, 0), stream, gap=0) for placement in chosen]
    items = [
        ToResize(source, placement, stream.allocate((20, 24, 3), np.uint8))
        for source, placement in zip(pixels, chosen, strict=True)
    ]
    resizer.enqueue(items)
    for some in (items, items[:5], items[::-1]):
        stream.sync()
        stream.forget()
        resizer.enqueue(some)
        assert [grid[2] for grid in stream.launches] == [len(some)]
        assert (stream.allocated, stream.pinned_bytes) == ([], [])
        # What the kernel does with each picture, and no tables.
        assert stream.uploaded == [len(some) * 88]
    stream.forget()
    resizer.enqueue([])
    assert stream.launches == []


@pytest.mark.parametrize("before", range(16))
def test_rows_are_read_and_written_at_any_alignment_and_nothing_beyond_them(before: int) -> None:
    """The picture ends where memory does that nobody may read, and so does what was allocated before it."""
    stream = HostDevice().stream()
    resizer = ExactResize(resize_of("bilinear", (1, 1)), channels=3, stream=stream)
    pixels = content("noise", 5, 20 + before, before)
    page, protect = mmap.PAGESIZE, ctypes.CDLL(None).mprotect
    memory = np.frombuffer(mmap.mmap(-1, 3 * page), np.uint8)
    start, readable = memory.ctypes.data, mmap.PROT_READ | mmap.PROT_WRITE
    for guarded, first in ((0, page), (2 * page, 2 * page - pixels.size)):
        memory[first : first + pixels.size] = pixels.reshape(-1)
        assert protect(ctypes.c_void_p(start + guarded), page, 0) == 0
        strides = (pixels.shape[1] * 3, 3, 1)
        source = DeviceArray(start + first, pixels.shape, memory.dtype, stream.handle, memory, strides)
        plan = planned(pixels.shape[:2], (4, 37), Window(0, 1, 4, 33), (1, before % 4), (6, 40))
        canvas = stream.allocate((6, 40, 3), np.uint8)
        resizer.enqueue([ToResize(source, plan, canvas)])
        stream.sync()
        assert protect(ctypes.c_void_p(start + guarded), page, readable) == 0
        np.testing.assert_array_equal(view(canvas), expected(pixels, resize_of("bilinear", (4, 37)), plan, 3))


def test_tables_are_begun_anew_when_they_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROOM_AT_FIRST", 256)
    monkeypatch.setattr(tables, "ROOM_AT_MOST", 1024)
    stream = CountingStream()
    held = tables.Tables(stream, Staging(stream), _letters)
    for chosen, rooms, new in (
        (["a" * 3, "b" * 100], [256], True),
        (["a" * 3], [], False),  # remembered
        (["c" * 200, "a" * 3], [512], True),
        (["d" * 300], [1024], True),
        (["e" * 600], [], True),
        (["f" * 600], [], True),  # all is forgotten, in the same memory
        (["d" * 300], [], True),
        (["f" * 600, "d" * 300], [], False),
        (["g" * 3000, "f" * 600], [4096], True),  # one batch needs more
        (["h" * 2000], [], True),
    ):
        stream.forget()
        about = held.about([(ord(text[0]), len(text)) for text in chosen])
        stream.sync()
        for text, (address, known) in zip(chosen, about.tolist(), strict=True):
            assert (ctypes.string_at(address, len(text)).decode(), known) == (text, len(text))
            assert address % 16 == about[0, 0] % 16
        assert stream.allocated == rooms
        assert (stream.uploaded != []) == new


def _letters(keys: npt.NDArray[np.int64]) -> tables.Made:
    """A table of a letter, as many as a key says."""
    ends = np.cumsum(tables.aligned(keys[:, 1]))
    values = np.zeros(ends[-1], np.uint8)
    for (letter, count), end in zip(keys.tolist(), ends.tolist(), strict=True):
        values[end - tables.aligned(count) :][:count] = letter
    return values, np.stack([ends - tables.aligned(keys[:, 1]), keys[:, 1]], axis=1)


def test_what_the_stream_may_still_read_is_never_written_again() -> None:
    stream = CountingStream()
    staging = Staging(stream)
    for first in (0, 4):
        targets = [stream.allocate((5,), np.int32) for _ in range(4)]
        for number, target in enumerate(targets, first):
            staging.upload(np.full(5, number, np.int32), target)
        stream.sync()
        assert [set(view(target).tolist()) for target in targets] == [{first + number} for number in range(4)]
        assert len(stream.pinned_bytes) == 4
    staging.upload(np.zeros(100_000, np.uint8), stream.allocate((100_000,), np.uint8))
    assert stream.pinned_bytes[4:] == [1 << 17]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_values_are_read_with_one_wait_and_are_the_caller_s(dtype: type) -> None:
    stream = HostDevice().stream()
    reading, chosen = Reading(stream), np.random.default_rng(0)
    kept = []
    for scale in (1, 40, 2):
        shapes = [(3, 5 * scale), (scale,), (0, 7 * scale), (2, 3, 11 * scale)]
        values = [chosen.integers(0, 99, shape).astype(dtype) for shape in shapes]
        arrays = [stream.allocate(shape, dtype) for shape in shapes]
        for one, array in zip(values, arrays, strict=True):
            stream.upload(one, array)
        before = stream.device.syncs
        reading.queue(arrays)
        assert stream.device.syncs == before
        stream.sync()
        kept.append((reading.values(), values))
    for found, values in kept:
        assert_same(found, values)
    reading.queue([])
    assert reading.values() == []


NAMES = {
    RESAMPLE_KERNELS: (b"resample",),
    KERNELS: (b"interpolate", b"rectify", b"look_up", b"write_rows"),
    CHANGE_KERNELS: (
        b"recolor", b"by_table", b"saturate", b"erase", b"keep", b"sharpen", b"count_levels", b"equalize_table"
    ),
    MATTE_KERNELS: tuple(name.encode() for name in MATTE_NAMES),
    TAKE: (b"take_planes",),
}  # fmt: skip


@pytest.mark.parametrize("arch", ["sm_75", "sm_120"])
@pytest.mark.parametrize("source", NAMES, ids=["resample", "resize", "changes", "matte", "planes"])
def test_nvrtc_compiles_the_kernels_for_the_oldest_gpu_and_the_newest(source: str, arch: str) -> None:
    """NVIDIA's compiler needs no GPU."""
    from cuda.core import Program, ProgramOptions

    code = bytes(Program(source, "c++", ProgramOptions(arch=arch)).compile("cubin").code)
    assert all(name in code for name in NAMES[source])
