"""Composing on a GPU: the CUDA kernels, run by a C++ compiler, equal the CPU's composition in every bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from counting_stream import CountingStream
from gpu_frames import a_frame, a_matte, a_surface, blank
from host_gpu import HostDevice, HostStream
from hypothesis import given
from hypothesis import strategies as st
from matte_backgrounds import BACKGROUNDS

from onestream.postprocess.matte.background import Background, Color
from onestream.postprocess.matte.composer import Composer
from onestream.postprocess.matte.composer_gpu import GpuComposer
from onestream.postprocess.planes import displayed
from onestream.preprocess.video.common.color import ColorRule, Planes
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.gpu.surfaces import LAYOUTS

UPRIGHT = Orientation()


def assert_equal(found: Planes, expected: Planes) -> None:
    for name in "yuv":
        one, other = getattr(found, name), getattr(expected, name)
        np.testing.assert_array_equal(one[: other.shape[0], : other.shape[1]], other, err_msg=name)
        assert (one[:, other.shape[1] :] == 123).all(), "what pads the rows is not ours"


def assert_composed(
    composer: GpuComposer, stream: Any, background: Background, frame: Planes, matte: Any, orientation: Orientation
) -> None:
    """One frame by both; the rule is the automatic one."""
    shown = displayed(frame, orientation)
    out = blank(shown, padding=5)
    composer.compose(a_surface(frame, stream), orientation, matte, out)
    assert_equal(out, Composer(background).compose_reference(shown, matte))


SEEDS = st.integers(0, 1000)


@given(
    frame_of=st.builds(
        partial,
        st.just(a_frame),
        st.tuples(st.integers(1, 90), st.integers(1, 90)),
        st.sampled_from(sorted(LAYOUTS)),
        tag=st.sampled_from([1, 2, 6, 9]),
        full=st.booleans(),
    ),
    matte=st.builds(a_matte, st.tuples(st.integers(4, 43), st.integers(3, 42)), SEEDS),
    background=st.sampled_from(list(BACKGROUNDS)),
    orientation=st.builds(Orientation, st.booleans(), st.booleans(), st.booleans()),
    seed=SEEDS,
)
def test_every_bit_is_that_of_the_cpu(
    frame_of: Callable[..., Planes], matte: Any, background: str, orientation: Orientation, seed: int
) -> None:
    """The matte is a cut of the network's canvas, as of a letterbox."""
    stream: Any = HostDevice().stream()
    behind = BACKGROUNDS[background]
    composer = GpuComposer(behind, stream=stream)
    for number, own in ((seed, matte), (seed + 1, 255 - matte)):
        assert_composed(composer, stream, behind, frame_of(seed=number), own[2:-1, 1:-1], orientation)


@pytest.mark.parametrize("background", list(BACKGROUNDS))
def test_a_change_of_size_matte_or_colours_is_followed(background: str) -> None:
    stream: Any = HostDevice().stream()
    composer = GpuComposer(BACKGROUNDS[background], stream=stream)
    changes: list[tuple[tuple[int, int], tuple[int, int], int, bool]] = [
        ((40, 60), (8, 8), 1, False),
        ((33, 71), (8, 8), 1, False),
        ((33, 71), (9, 5), 1, False),
        ((33, 71), (9, 5), 6, False),
        ((33, 71), (9, 5), 6, True),
        ((40, 60), (8, 8), 1, False),
    ]
    for seed, (size_hw, matte_hw, tag, full) in enumerate(changes):
        frame = a_frame(size_hw, tag=tag, full=full, seed=seed)
        assert_composed(composer, stream, BACKGROUNDS[background], frame, a_matte(matte_hw, seed), UPRIGHT)


def test_the_rule_chooses_the_colours_of_the_background() -> None:
    stream: Any = HostDevice().stream()
    frame, rule = a_frame((20, 30), tag=1, seed=1), ColorRule(matrix="bt601", range="full")
    background, out = Color((200, 30, 60)), blank(frame)
    matte = np.zeros((4, 4), np.uint8)
    GpuComposer(background, rule=rule, stream=stream).compose(a_surface(frame, stream), UPRIGHT, matte, out)
    assert_equal(out, Composer(background, rule=rule).compose_reference(frame, matte))
    assert not np.array_equal(out.y, Composer(background).compose_reference(frame, matte).y)


@pytest.mark.parametrize(("background", "launches"), [("color", 2), ("picture", 2), ("blur", 10)])
def test_a_frame_is_copied_back_once_and_allocates_nothing(background: str, launches: int) -> None:
    stream: Any = CountingStream()
    surface = a_surface(a_frame((48, 64), seed=1), stream.device.stream())
    composer = GpuComposer(BACKGROUNDS[background], stream=stream)
    out, matte = blank(a_frame((48, 64), seed=1)), a_matte((8, 8), 1)
    composer.compose(surface, UPRIGHT, matte, out)
    stream.forget()
    waits = stream.device.syncs
    composer.compose(surface, UPRIGHT, matte, out)
    # The matte goes up, the frame comes down.
    assert (len(stream.uploaded), len(stream.downloaded), stream.allocated) == (1, 1, [])
    assert len(stream.launches) == launches
    assert stream.device.syncs == waits + 1


def test_what_does_not_fit_is_refused() -> None:
    stream: Any = HostDevice().stream()
    composer, frame = GpuComposer(Color((1, 2, 3)), stream=stream), a_frame((20, 30), seed=1)
    surface, matte = a_surface(frame, stream), np.zeros((4, 4), np.uint8)
    with pytest.raises(ValueError, match=r"out has size, chroma shifts and depth \(\(20, 31\), \(1, 1\), 8\)"):
        composer.compose(surface, UPRIGHT, matte, blank(a_frame((20, 31), seed=1)))
    with pytest.raises(ValueError, match=r"\(\(20, 30\), \(1, 1\), 8\), the frame \(\(30, 20\), \(1, 1\), 8\)"):
        composer.compose(surface, Orientation(transpose=True), matte, blank(frame))
    with pytest.raises(ValueError, match="got shape \\(0, 4\\)"):
        composer.compose(surface, UPRIGHT, matte[:0], blank(frame))
    with pytest.raises(ValueError, match="is tagged with matrix coefficients 8"):
        composer.compose(surface, UPRIGHT, matte, blank(a_frame((20, 30), tag=8, seed=1)))


def test_an_error_lets_go_of_nothing_that_is_still_read() -> None:
    """A launch fails while others are queued: they are waited for before the caller may let the frame go."""
    device = HostDevice()

    class Failing(HostStream):
        fails = False

        def launch(self, kernel: Any, grid: Any, block: Any, arguments: Any) -> None:
            if self.fails and arguments[0] == composer._made[1].planes.frame.pointer:  # type: ignore[index]
                raise RuntimeError("CUDA_ERROR")
            super().launch(kernel, grid, block, arguments)

    stream: Any = Failing(device)
    frame, matte = a_frame((20, 30), seed=1), np.zeros((4, 4), np.uint8)
    composer, surface = GpuComposer(Color((1, 2, 3)), stream=stream), a_surface(frame, stream)
    composer.compose(surface, UPRIGHT, matte, blank(frame))
    waits, stream.fails = device.syncs, True
    with pytest.raises(RuntimeError, match="CUDA_ERROR"):
        composer.compose(surface, UPRIGHT, matte, blank(frame))
    assert device.syncs == waits + 1
