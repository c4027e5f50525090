"""``arithmetic: aten`` in every bit: torchvision's resize of tensors, the reference, the loops and the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from definition_strategies import SIZES
from host_gpu import HostDevice, view
from hypothesis import assume, example, given
from hypothesis import strategies as st
from image_files import encode
from PIL import Image
from pydantic import ValidationError

from onestream.preprocess import (
    CannotCompile,
    CenterCrop,
    Decode,
    Definition,
    Letterbox,
    Output,
    Resize,
    compile,
    compile_from_picture,
)
from onestream.preprocess.cuda.resize import ExactResize, ToResize
from onestream.preprocess.interop import libraries
from onestream.preprocess.interop.to_torchvision import to_torchvision
from onestream.preprocess.operations import Color, Filter
from onestream.preprocess.plan import Planner

FILTERS: tuple[Filter, ...] = ("nearest", "nearest-exact", "bilinear", "bicubic", "lanczos")
WITH_WEIGHTS = st.sampled_from(["bilinear", "bicubic", "lanczos"])
CONTENT = st.sampled_from(["noise", "edges", "slope"])
SEEDS = st.integers(0, 1000)


def picture(content: str, size_hw: tuple[int, int], channels: int, seed: int) -> np.ndarray:
    """Noise, hard edges where filters overshoot, and slopes that meet each rounding otherwise."""
    noise = np.random.default_rng(seed).integers(0, 256, (*size_hw, channels))
    if content == "edges":
        noise = (noise > 127) * 255
    if content == "slope":
        noise = np.add.outer(np.arange(size_hw[0]), np.arange(size_hw[1]))[:, :, None] + noise // 64
    return (noise % 256).astype(np.uint8)


def by_torchvision(pixels: np.ndarray, size_hw: tuple[int, int], filter: Filter, *, contiguous: bool) -> np.ndarray:
    """Of a tensor as ``pil_to_tensor`` makes it, channels last in memory, or a contiguous one."""
    if not libraries.is_installed("torchvision"):
        pytest.skip("torchvision is not installed")
    torch = libraries.load("torch")
    functional = libraries.load("torchvision.transforms.v2.functional")
    mode = libraries.load("torchvision.transforms").InterpolationMode(filter)
    capability = torch.backends.cpu.get_cpu_capability()
    if filter == "bilinear" and capability == "DEFAULT":
        pytest.skip("torchvision resizes in floats on this CPU")
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    # Of contiguous tensors with a side of one pixel PyTorch 2.13 mistakes some for others, and fails.
    if contiguous and 1 not in (*size_hw, *pixels.shape[:2]):
        tensor = tensor.contiguous()
    found = functional.resize(tensor, list(size_hw), interpolation=mode, antialias=True)
    return np.asarray(found.permute(1, 2, 0))


def resized(pixels: np.ndarray, resize: Resize) -> np.ndarray:
    """The specification."""
    image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    return np.asarray(resize.apply(image)).reshape(*resize.resized(pixels.shape[:2]), pixels.shape[2])


def aten(size_hw: tuple[int, int], filter: Filter) -> Resize:
    return Resize(mode="exact", size=size_hw, filter=filter, arithmetic="aten")


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("filter", FILTERS)
@given(size_hw=SIZES, to_hw=SIZES, content=CONTENT, seed=SEEDS, contiguous=st.booleans())
@example(size_hw=(480, 640), to_hw=(224, 224), content="noise", seed=0, contiguous=True)
@example(size_hw=(1080, 30), to_hw=(17, 64), content="edges", seed=0, contiguous=False)
@example(size_hw=(31, 33), to_hw=(32, 32), content="slope", seed=0, contiguous=False)
@example(size_hw=(3, 3), to_hw=(300, 7), content="edges", seed=0, contiguous=True)
def test_every_bit_is_torchvisions(
    channels: int,
    filter: Filter,
    size_hw: tuple[int, int],
    to_hw: tuple[int, int],
    content: str,
    seed: int,
    contiguous: bool,
) -> None:
    pixels = picture(content, size_hw, channels, seed)
    expected = by_torchvision(pixels, to_hw, filter, contiguous=contiguous)
    np.testing.assert_array_equal(resized(pixels, aten(to_hw, filter)), expected)


OPERATIONS = st.builds(
    lambda filter, mode, box, crop: (
        [Letterbox(size=box, filter=filter, arithmetic="aten")]
        if mode == "letterbox"
        else [
            Resize(mode=mode, size=box if mode in ("exact", "fit") else box[0], filter=filter, arithmetic="aten"),
            *([CenterCrop(size=crop)] if crop else []),
        ]
    ),
    filter=st.sampled_from(FILTERS),
    mode=st.sampled_from(["shorter", "longer", "exact", "fit", "letterbox"]),
    box=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    crop=st.none() | st.tuples(st.integers(1, 60), st.integers(1, 60)),
)
COLORS = st.sampled_from(["rgb", "bgr", "gray"])


def definition_of(operations: Any, color: Color) -> Definition:
    return Definition(operations=[Decode(color=color), *operations, Output(layout="NHWC", dtype="uint8")])


@pytest.mark.slow
@given(operations=OPERATIONS, color=COLORS, size_hw=SIZES, content=CONTENT, seed=SEEDS)
def test_backends_on_a_cpu_equal_the_reference(
    operations: Any, color: Color, size_hw: tuple[int, int], content: str, seed: int
) -> None:
    """Of files, of which DALI decodes what the crop keeps, and of pictures; and torchvision's form is the same."""
    definition = definition_of(operations, color)
    pixels = picture(content, size_hw, 3, seed)
    file = encode(Image.fromarray(pixels), "PNG")
    (expected,) = compile(definition, backend="reference").run([file])
    (seen,) = compile(definition, backend="dali").run([file])
    np.testing.assert_array_equal(seen, expected)
    for backend in ("reference", "dali"):
        seen = compile_from_picture(definition, backend=backend).run(pixels)
        np.testing.assert_array_equal(seen, expected)
    assume(libraries.is_installed("torchvision"))
    np.testing.assert_array_equal(np.asarray(to_torchvision(definition)(Image.fromarray(pixels))), expected)


@given(operations=OPERATIONS, color=st.sampled_from(["rgb", "gray"]), sizes=st.lists(SIZES, min_size=1, max_size=4))
def test_kernels_equal_the_reference(operations: Any, color: Color, sizes: list[tuple[int, int]]) -> None:
    """A batch of sizes, on a GPU made of host memory."""
    definition = definition_of(operations, color)
    stream, planner = HostDevice().stream(), Planner(definition)
    channels = definition.output_spec.channels
    resizer = ExactResize(definition.resize, channels=channels, stream=stream)
    pictures = [picture("noise", size_hw, 3, seed) for seed, size_hw in enumerate(sizes)]
    plans = [planner(size_hw) for size_hw in sizes]
    canvases, sources = [], []
    for pixels, plan in zip(pictures, plans, strict=True):
        canvases.append(stream.allocate((*plan.canvas_hw, channels), np.uint8))
        stream.fill(canvases[-1], next(iter(definition.fills), 0))
        sources.append(stream.allocate(pixels.shape, np.uint8))
        stream.upload(pixels, sources[-1])
    resizer.enqueue([ToResize(*item) for item in zip(sources, plans, canvases, strict=True)])
    stream.sync()
    reference = compile_from_picture(definition, backend="reference")
    for pixels, canvas in zip(pictures, canvases, strict=True):
        np.testing.assert_array_equal(view(canvas), reference.run(pixels))


def test_older_definitions_keep_their_digests() -> None:
    resize, letterbox = Resize(mode="shorter", size=256), Letterbox(size=(64, 64))
    assert "arithmetic" not in resize.model_dump_json() + letterbox.model_dump_json()
    one = definition_of([resize], "rgb")
    other = definition_of([resize.model_copy(update={"arithmetic": "aten"})], "rgb")
    assert one.digest != other.digest
    assert Definition.from_json(other.canonical_json()) == other
    assert Definition.from_yaml(other.to_yaml()) == other


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"filter": "nearest-exact"}, "goes with arithmetic 'aten' only"),
        ({"arithmetic": "aten", "antialias": False}, "antialias false goes with arithmetic 'pil' only"),
        ({"arithmetic": "opencv"}, "'pil' or 'aten'"),
    ],
)
def test_what_an_arithmetic_has_not_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Resize(mode="exact", size=(8, 8), **fields)


def test_a_fraction_of_a_jpeg_is_pillows_arithmetic_only() -> None:
    with pytest.raises(ValidationError, match=r"dct_scaling ends within a pixel.*arithmetic 'pil' only"):
        Definition(operations=[Decode(dct_scaling=True), aten((8, 8), "bilinear")])


def test_a_graph_of_dali_refuses_it_by_name() -> None:
    from onestream.preprocess.backends.base import refuse_for_graph

    with pytest.raises(CannotCompile, match=r"dali cannot resize with arithmetic 'aten' on a GPU.*'exact'"):
        refuse_for_graph(definition_of([aten((8, 8), "bilinear")], "rgb"))
