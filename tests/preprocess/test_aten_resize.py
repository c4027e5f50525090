"""``arithmetic: aten`` in every bit: torchvision's resize of tensors, the reference, the loops and the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cvcuda_on_host import cvcuda_on_host
from definition_strategies import SIZES
from definitions import in_levels
from hypothesis import assume, example, given
from hypothesis import strategies as st
from image_files import encode
from PIL import Image
from same_samples import assert_same
from test_exact_resize import content

from onestream.preprocess import CannotCompile, CenterCrop, Letterbox, Resize, compile, compile_from_picture
from onestream.preprocess.backends.base import refuse_for_graph
from onestream.preprocess.geometry import Size
from onestream.preprocess.interop import libraries
from onestream.preprocess.interop.to_torchvision import to_torchvision
from onestream.preprocess.operations import Color, Filter

FILTERS: tuple[Filter, ...] = ("nearest", "nearest-exact", "bilinear", "bicubic", "lanczos")
KINDS = st.sampled_from(["noise", "edges", "slope"])
SEEDS = st.integers(0, 1000)


def by_torchvision(pixels: np.ndarray, size_hw: Size, filter: Filter, *, contiguous: bool) -> np.ndarray:
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


def aten(size_hw: Size, filter: Filter) -> Resize:
    return Resize(mode="exact", size=size_hw, filter=filter, arithmetic="aten")


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("filter", FILTERS)
@given(size_hw=SIZES, to_hw=SIZES, kind=KINDS, seed=SEEDS, contiguous=st.booleans())
@example(size_hw=(480, 640), to_hw=(224, 224), kind="noise", seed=0, contiguous=True)
@example(size_hw=(1080, 30), to_hw=(17, 64), kind="edges", seed=0, contiguous=False)
@example(size_hw=(31, 33), to_hw=(32, 32), kind="slope", seed=0, contiguous=False)
@example(size_hw=(3, 3), to_hw=(300, 7), kind="edges", seed=0, contiguous=True)
def test_every_bit_is_torchvisions(
    channels: int, filter: Filter, size_hw: Size, to_hw: Size, kind: str, seed: int, contiguous: bool
) -> None:
    pixels = content(kind, *size_hw, seed)[:, :, :channels].copy()
    seen = np.asarray(aten(to_hw, filter).apply(Image.fromarray(pixels.squeeze(2) if channels == 1 else pixels)))
    expected = by_torchvision(pixels, to_hw, filter, contiguous=contiguous)
    np.testing.assert_array_equal(seen.reshape(expected.shape), expected)


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


@pytest.mark.slow
@given(operations=OPERATIONS, color=COLORS, size_hw=SIZES, kind=KINDS, seed=SEEDS)
def test_backends_on_a_cpu_equal_the_reference(
    operations: Any, color: Color, size_hw: Size, kind: str, seed: int
) -> None:
    """Of files, of which DALI decodes what the crop keeps, and of pictures; and torchvision's form is the same."""
    definition = in_levels(*operations, color=color)
    pixels = content(kind, *size_hw, seed)
    file = encode(Image.fromarray(pixels), "PNG")
    (expected,) = compile(definition, backend="reference").run([file])
    np.testing.assert_array_equal(compile(definition, backend="dali").run([file])[0], expected)
    for backend in ("reference", "dali"):
        np.testing.assert_array_equal(compile_from_picture(definition, backend=backend).run(pixels), expected)
    assume(libraries.is_installed("torchvision"))
    np.testing.assert_array_equal(np.asarray(to_torchvision(definition)(Image.fromarray(pixels))), expected)


@given(operations=OPERATIONS, color=st.sampled_from(["rgb", "gray"]), sizes=st.lists(SIZES, min_size=1, max_size=4))
def test_kernels_equal_the_reference(operations: Any, color: Color, sizes: list[Size]) -> None:
    """A batch of sizes, on a GPU made of host memory."""
    definition = in_levels(*operations, color=color)
    files = [encode(Image.fromarray(content("noise", *size, seed)), "PNG") for seed, size in enumerate(sizes)]
    with cvcuda_on_host() as compile_on_host:
        assert_same(compile_on_host(definition).run(files), compile(definition).run(files))


def test_a_graph_of_dali_refuses_it_by_name() -> None:
    with pytest.raises(CannotCompile, match=r"dali cannot resize with arithmetic 'aten' on a GPU.*'exact'"):
        refuse_for_graph(in_levels(aten((8, 8), "bilinear")))
