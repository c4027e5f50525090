"""Variations on a GPU by a C++ compiler: boxes, transforms and changes of levels are the reference's in every bit."""

from __future__ import annotations

import typing
from typing import Any

import numpy as np
import pytest
from change_strategies import changes_of_levels
from counting_stream import CountingStream
from definition_strategies import FILTERS
from definitions import in_levels
from host_gpu import HostDevice, HostStream, view
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from test_exact_resize import content, on_gpu

from onestream.preprocess import CannotCompile, Definition, Resize
from onestream.preprocess.backends.cvcuda import GpuVariations
from onestream.preprocess.backends.reference import in_color, planned_pixels
from onestream.preprocess.backends.table import BACKENDS
from onestream.preprocess.changes import CHANGES_ON_GPU, AnyChange, Blur, Contrast, Hue, Invert, Jpeg, Noise, changed
from onestream.preprocess.cuda.changes import LevelChanges
from onestream.preprocess.cuda.device import DeviceArray
from onestream.preprocess.cuda.resize import ToResize
from onestream.preprocess.geometry import Size, Window
from onestream.preprocess.operations import Color
from onestream.preprocess.plan import Plan, Planner
from onestream.preprocess.training import Augmentation
from onestream.preprocess.training.augmentation import AnyAugmentationOperation
from onestream.preprocess.variation import Variation, Warp

COLORS = st.sampled_from(["rgb", "bgr", "gray"])
KINDS = st.sampled_from(["noise", "edges", "slope", "flat"])
SHORT = st.integers(1, 40)


def definition_of(size_hw: Size, color: Color, **resize: Any) -> Definition:
    return in_levels(Resize(mode="exact", size=size_hw, **resize), color=color)


def plan_of(definition: Definition, pixels: np.ndarray, variation: Variation) -> Plan:
    return Planner(definition)((pixels.shape[0], pixels.shape[1]), lambda _size: variation)


def run(definition: Definition, pictures: list[np.ndarray], drawn: list[Variation]) -> list[np.ndarray]:
    """One batch on a GPU of host memory."""
    stream = HostDevice().stream()
    items = [
        ToResize(
            on_gpu(pixels, stream, gap=at % 3),
            plan_of(definition, pixels, variation),
            stream.allocate(definition.output_spec.shape, np.uint8),
        )
        for at, (pixels, variation) in enumerate(zip(pictures, drawn, strict=True))
    ]
    variations = GpuVariations(definition, stream=stream)
    variations.enqueue(items)
    # It is kept until then, as the pinned memory is that the stream reads.
    stream.sync()
    assert stream.device.syncs == 1
    return [view(item.canvas) for item in items]


def canvas_of(pixels: np.ndarray, stream: HostStream, *, gap: int) -> DeviceArray:
    """Pixels on the GPU, in rows with a gap between them."""
    height, width, channels = pixels.shape
    staged = stream.pinned((height, width + gap, channels), np.uint8)
    staged[:, :width] = pixels
    canvas = stream.allocate(staged.shape, np.uint8)
    stream.upload(staged, canvas)
    stream.sync()
    return canvas.window(0, 0, height, width)


def check(definition: Definition, pictures: list[np.ndarray], drawn: list[Variation]) -> None:
    for seen, pixels, variation in zip(run(definition, pictures, drawn), pictures, drawn, strict=True):
        image = in_color(Image.fromarray(pixels), definition.color)
        np.testing.assert_array_equal(seen, planned_pixels(definition, image, plan_of(definition, pixels, variation)))


@st.composite
def boxes(draw: st.DrawFn, size_hw: Size) -> Variation:
    """Of a picture, and some beyond it."""
    top, left = (draw(st.integers(-5, side - 1)) for side in size_hw)
    box = Window(top, left, draw(st.integers(1, 60)), draw(st.integers(1, 60)))
    return Variation.of_box(box, flip=draw(st.booleans()), upside_down=draw(st.booleans())).model_copy(
        update={"fill": draw(st.integers(0, 255))}
    )


@given(
    data=st.data(), canvas=st.tuples(SHORT, SHORT), color=COLORS,
    resize=FILTERS.map(lambda name: {"filter": name}) | st.just({"antialias": False}),
)  # fmt: skip
def test_boxes_mirrored_or_not_are_the_references_in_every_bit(
    data: st.DataObject, canvas: Size, color: Color, resize: dict[str, Any]
) -> None:
    sizes = data.draw(st.lists(st.tuples(st.integers(1, 80), st.integers(1, 80)), min_size=1, max_size=4))
    pictures = [content("edges", *size, at) for at, size in enumerate(sizes)]
    check(definition_of(canvas, color, **resize), pictures, [data.draw(boxes(size)) for size in sizes])


CHAIN = Augmentation(
    [
        {"op": "scale_jitter", "scale": [0.3, 3], "probability": 0.5},
        {"op": "rotation", "degrees": [-180, 180], "probability": 0.7},
        {"op": "perspective"},
        {"op": "affine", "shear_x": [-30, 30], "scale": [0.2, 2], "translate": [0.5, 0.5], "probability": 0.5},
        {"op": "flip"},
        {"op": "flip", "axis": "vertical"},
    ]
)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), min_size=1, max_size=4),
    canvas=st.tuples(SHORT, SHORT), color=COLORS, seed=st.integers(0, 2**32), fill=st.integers(0, 255),
)  # fmt: skip
@example(sizes=[(190, 5), (5, 190)], canvas=(3, 40), color="gray", seed=1, fill=7)
def test_any_transform_is_the_references_in_every_bit(
    sizes: list[Size], canvas: Size, color: Color, seed: int, fill: int
) -> None:
    definition = definition_of(canvas, color)
    drawn = [
        CHAIN.draw(size, seed=seed, epoch=0, index=at, definition=definition).model_copy(update={"fill": fill})
        for at, size in enumerate(sizes)
    ]
    check(definition, [content("noise", *size, at) for at, size in enumerate(sizes)], drawn)


@pytest.mark.parametrize(
    ("more", "lacking"),
    [({"warp": Warp(moved=(((1, 0), (0, 1)),) * 2)}, "warp"), ({"canvas_hw": (3, 7)}, "several samples on one canvas")],
)
def test_a_warp_and_a_part_of_a_canvas_are_refused_by_name(more: dict[str, Any], lacking: str) -> None:
    pictures, variation = [content("noise", 20, 30, 0)], Variation.of_box(Window(1, 2, 9, 8))
    definition = definition_of((6, 7), "rgb")
    with pytest.raises(CannotCompile, match=f"cvcuda on a GPU lacks {lacking}; device='cpu' can"):
        run(definition, pictures, [variation.model_copy(update=more)])
    check(definition, pictures, [variation.model_copy(update={"canvas_hw": (6, 7)})])


def test_a_picture_that_is_moved_out_of_sight_is_all_fill() -> None:
    beyond = Variation(corners=((100, 100), (110, 101), (111, 112), (99, 110)), fill=9)
    (seen,) = run(definition_of((6, 7), "rgb"), [content("noise", 20, 30, 0)], [beyond])
    assert (seen == 9).all()


@given(data=st.data(), color=COLORS)
def test_changes_of_levels_are_the_references_in_every_bit(data: st.DataObject, color: Color) -> None:
    """Several pictures with lists of their own, of all kinds: each change sees what the one before it made."""
    stream = HostDevice().stream()
    changes = LevelChanges(stream, bgr=color == "bgr")
    for turn in range(2):
        items, expected = [], []
        for seed in range(data.draw(st.integers(1, 4))):
            size_hw = data.draw(st.tuples(SHORT, SHORT))
            pixels = content(data.draw(KINDS), *size_hw, data.draw(st.integers(0, 300)) + seed + turn)
            pixels = pixels[:, :, : 1 if color == "gray" else 3].copy()
            if data.draw(st.booleans()):
                # Few levels, so that the ends of the histogram are not those of the range.
                pixels = (pixels // 7 + 60).astype(np.uint8)
            chosen = data.draw(st.lists(changes_of_levels(color), max_size=4))
            items.append((canvas_of(pixels, stream, gap=seed), chosen))
            expected.append(changed(pixels, chosen, color=color))
        changes.enqueue(items)
        stream.sync()
        for (canvas, chosen), known in zip(items, expected, strict=True):
            np.testing.assert_array_equal(view(canvas), known, err_msg=str(list(map(str, chosen))))


def check_change(pixels: np.ndarray, change: AnyChange, color: Color) -> None:
    stream = HostDevice().stream()
    canvas, changes = canvas_of(pixels, stream, gap=0), LevelChanges(stream, bgr=color == "bgr")
    changes.enqueue([(canvas, [change])])
    stream.sync()
    np.testing.assert_array_equal(view(canvas), changed(pixels, [change], color=color))


def test_the_mean_of_a_whole_picture_is_pillows() -> None:
    """Of 3,000 x 2,000 pixels, where a sum in 32 bits would be too large."""
    check_change(np.full((2000, 3000, 1), 250, np.uint8), Contrast(factor=0.5), "gray")


@pytest.mark.parametrize("color", ["rgb", "bgr"])
def test_every_hue_is_turned_as_by_pillow(color: Color) -> None:
    levels = np.arange(0, 256, 15, dtype=np.uint8)
    pixels = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), axis=-1).reshape(len(levels), -1, 3)
    for step in range(-127, 128, 23):
        check_change(pixels, Hue(turns=step / 255), color)


@pytest.mark.parametrize("change", [Blur(sigma=1), Noise(sigma=1, seed=0), Jpeg(quality=50)])
def test_a_change_that_the_kernels_lack_is_refused_by_name(change: AnyChange) -> None:
    stream = HostDevice().stream()
    canvas = canvas_of(content("noise", 5, 6, 0), stream, gap=0)
    with pytest.raises(CannotCompile, match=f"cvcuda on a GPU lacks {change.op}; device='cpu' can"):
        LevelChanges(stream, bgr=False).enqueue([(canvas, [Invert(), change])])
    assert change.op not in CHANGES_ON_GPU


def test_a_batch_takes_few_launches_and_no_wait() -> None:
    stream, definition = CountingStream(), definition_of((16, 20), "rgb")
    made, planner = GpuVariations(definition, stream=stream), Planner(definition)
    policy = Augmentation([{"op": "box"}, {"op": "flip"}, {"op": "trivial_augment"}, {"op": "erase"}])
    items = [
        ToResize(
            on_gpu(content("noise", 30, 40, at), stream, gap=0),
            planner((30, 40), lambda size, at=at: policy.draw(size, seed=0, epoch=0, index=at, definition=definition)),
            stream.allocate((16, 20, 3), np.uint8),
        )
        for at in range(64)
    ]
    launches = []
    for batch in (items[:48], items[:48] + items[:16]):
        stream.forget()
        made.enqueue(batch)
        launches.append(len(stream.launches))
        assert stream.device.syncs == 0
        stream.sync()
        stream.device.syncs = 0
    # As many as there are kinds of work, not pictures.
    assert launches[0] == launches[1] < 24


def test_every_operation_says_what_it_needs_of_a_gpu() -> None:
    """Whatever a chain draws, its needs name it."""
    definition = definition_of((16, 20), "rgb")
    (union, _) = typing.get_args(AnyAugmentationOperation)
    for backend, can in ((row.name, row.varies_on_gpu) for row in BACKENDS.values() if row.varies_on_gpu):
        for operation in typing.get_args(union):
            default = {"op": operation.model_fields["op"].default, "probability": 1}
            if not hasattr(operation, "NEEDS"):
                continue
            chain = Augmentation([{"op": "box"}, default])
            if chain.lacking(can):
                continue
            for index in range(50):
                variation = chain.draw((30, 40), seed=0, epoch=0, index=index, definition=definition)
                assert {change.op for change in variation.changes} <= set(can), (backend, operation)
                assert "transform" in can or variation.box_in((30, 40)) is not None
