"""Composing on a GPU, with CV-CUDA's operations done by OpenCV in host memory: what is called, with what, in order.

What the vendor's kernels make of it is left to ``tests/gpu/test_gpu_matte.py``.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from composed_rgb import composed
from host_cvcuda import Tensor, as_stream, on_stream
from host_gpu import HostDevice, HostStream, view
from host_work import Place

from onestream.postprocess.matte.composer import alpha
from onestream.serving.pipeline import BlurBackground, ColorBackground, Matte, PictureBackground, Pipeline
from onestream.serving.video.matte_gpu_plan import alpha_line, blur_plan

ROOT = Path(__file__).parents[3]
DEFINITION = Pipeline.from_file(ROOT / "pipelines" / "matte.yaml").preprocess
RNG = np.random.default_rng(2)
PICTURE = RNG.integers(0, 256, (40, 90, 3), dtype=np.uint8)


def _later(operation: Any) -> Any:
    """An operation of CV-CUDA: checked when it is called, done by its stream."""

    def operator(target: Tensor, source: Tensor, *arguments: Any, **options: Any) -> Any:
        places = [one.place if isinstance(one, Tensor) else one for one in (target, source, *arguments)]
        return lambda: operation(*(one.values() if isinstance(one, Place) else one for one in places), **options)

    return on_stream(operator)


def _convertto_into(target: Any, source: Any, scale: float, offset: float) -> None:
    target[...] = np.clip(np.rint(source * np.float32(scale) + np.float32(offset)), 0, 255)


def _hq_resize_into(target: Any, source: Any, *, antialias: bool = False, interpolation: str) -> None:
    assert interpolation == "linear"
    how = cv2.INTER_AREA if antialias else cv2.INTER_LINEAR
    resized = cv2.resize(source.astype(np.float32), target.shape[1::-1], interpolation=how)
    target[...] = np.rint(resized).reshape(target.shape)


def _gaussian_into(target: Any, source: Any, kernel: Any, sigma: Any, border: str) -> None:
    assert border == "replicate"
    smooth = cv2.GaussianBlur(
        source.astype(np.float32), kernel, sigma[0], sigmaY=sigma[1], borderType=cv2.BORDER_REPLICATE
    )
    target[...] = np.rint(smooth)


def _composite_into(target: Any, frame: Any, back: Any, levels: Any) -> None:
    target[...] = ((frame.astype(np.float32) - back) * levels / 255 + back + 0.5).astype(np.uint8)


@pytest.fixture
def composer_class(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    fake = types.ModuleType("cvcuda")
    for name, value in {
        "as_stream": as_stream,
        "as_tensor": Tensor,
        "Interp": types.SimpleNamespace(LINEAR="linear"),
        "Border": types.SimpleNamespace(REPLICATE="replicate"),
        "convertto_into": _later(_convertto_into),
        "hq_resize_into": _later(_hq_resize_into),
        "gaussian_into": _later(_gaussian_into),
        "composite_into": _later(_composite_into),
    }.items():
        setattr(fake, name, value)
    monkeypatch.setitem(sys.modules, "cvcuda", fake)
    monkeypatch.delitem(sys.modules, "onestream.serving.video.matte_gpu", raising=False)
    from onestream.serving.video.matte_gpu import GpuComposer

    yield GpuComposer
    sys.modules.pop("onestream.serving.video.matte_gpu", None)


def smooth(size_hw: tuple[int, int], channels: int) -> np.ndarray:
    """Levels without jumps, so that roundings stay the only difference between filters."""
    small = RNG.integers(0, 256, (4, 6, channels), dtype=np.uint8)
    return cv2.resize(small, (size_hw[1], size_hw[0]), interpolation=cv2.INTER_CUBIC).reshape(*size_hw, channels)


@pytest.mark.parametrize(
    ("background", "tolerance"),
    [
        (ColorBackground(rgb=(1, 120, 250)), 2.0),  # the alpha is rounded before and after it is stretched
        (PictureBackground(path="x"), 2.0),
        (BlurBackground(radius=28), 6.0),  # cells are not a Gaussian
    ],
)
@pytest.mark.parametrize("size_hw", [(270, 480), (480, 270), (201, 333)])
def test_frames_are_composed_as_on_the_cpu(
    composer_class: Any, background: Any, tolerance: float, size_hw: tuple[int, int]
) -> None:
    device = HostDevice()
    stream: HostStream = device.stream()
    options = Matte(softness=0.8, background=background)
    composer = composer_class(options, DEFINITION, size_hw, stream=stream, picture=PICTURE)
    frame, out = stream.allocate((*size_hw, 3), np.uint8), stream.allocate((*size_hw, 3), np.uint8)
    person = stream.allocate((256, 256), np.float32)
    waits = device.syncs
    for _ in range(2):
        pixels, probability = smooth(size_hw, 3), smooth((256, 256), 1)[:, :, 0].astype(np.float32) / 255
        pixels = np.ascontiguousarray(pixels)
        stream.upload(pixels, frame)
        stream.upload(probability, person)
        composer.enqueue(frame, person, out)
        assert device.syncs == waits, "composing must not wait"
        stream.sync()
        waits = device.syncs
        expected = composed(options, DEFINITION, pixels, probability, PICTURE)
        assert np.abs(view(out) - expected).max() <= tolerance


def test_what_does_not_fit_is_refused(composer_class: Any) -> None:
    stream = HostDevice().stream()
    with pytest.raises(ValueError, match="needs the picture"):
        composer_class(Matte(background=PictureBackground(path="x")), DEFINITION, (90, 160), stream=stream)
    composer = composer_class(Matte(), DEFINITION, (90, 160), stream=stream)
    frame, person = stream.allocate((90, 160, 3), np.uint8), stream.allocate((256, 256), np.float32)
    with pytest.raises(ValueError, match=r"out is uint8 \(90, 161, 3\), expected contiguous uint8 \(90, 160, 3\)"):
        composer.enqueue(frame, person, stream.allocate((90, 161, 3), np.uint8))
    with pytest.raises(ValueError, match="person is float64"):
        composer.enqueue(frame, stream.allocate((256, 256), np.float64), frame)


@pytest.mark.parametrize("softness", [1.0, 0.5, 0.1])
def test_one_line_gives_the_levels_of_alpha(softness: float) -> None:
    person = np.linspace(0, 1, 5001, dtype=np.float32)
    factor, offset = alpha_line(softness)
    levels = np.clip(np.rint(person * factor + offset), 0, 255)
    # Ties go to even instead of up, and sums are rounded elsewhere: one level, rarely.
    difference = np.abs(levels - alpha(person, softness=softness))
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.02


@pytest.mark.parametrize("radius", [12, 20, 28, 60, 200, 512])
def test_a_blur_s_steps_add_up_to_its_deviation(radius: int) -> None:
    plan = blur_plan(radius, (2048, 4096))
    cell = 2048 / plan.cells_hw[0]
    assert plan.cells_hw[1] == 2 * plan.cells_hw[0]
    assert np.sqrt((plan.sigma * cell) ** 2 + cell**2 / 3) == pytest.approx(8 * (radius // 8) + 4)
    assert plan.sigma <= 4
    assert plan.kernel % 2 == 1
    assert plan.kernel >= 6 * plan.sigma
