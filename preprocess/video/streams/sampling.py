"""Chooses the frames of a stream as ``clips.choose_frames`` does, while they come."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

from onestream.preprocess.video.clips.choose_frames import Clip

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """A choice of frames of any stream; the fields are those of ``Clip``.

    Every ``stride``-th frame in the order of display from ``start_frame`` on, before ``end_frame``, ``num_frames`` at
    most. ``fps`` replaces the stride: the k-th frame is the one shown k / fps seconds after ``start_frame``. Where
    ``fps`` is above the stream's rate a clip repeats frames; of a stream, each is taken once, and ``num_frames`` counts
    the repeats all the same. Raises ``ValueError`` for options out of range or against each other.
    """

    stride: int = 1
    fps: float | Fraction | None = None
    start_frame: int = 0
    end_frame: int | None = None
    num_frames: int | None = None

    def __post_init__(self) -> None:
        Clip(
            stride=self.stride,
            fps=self.fps,
            start_frame=self.start_frame,
            end_frame=self.end_frame,
            num_frames=self.num_frames,
        )

    @property
    def takes_all(self) -> bool:
        """Whether no frame is left out before the end."""
        return self.stride == 1 and self.fps is None and self.start_frame == 0


class Sampler(Generic[_Item]):
    """Applies a sampling to one stream.

    By stride a frame is taken or left as it comes. By time it is certain only when the next frame comes, unless a
    frame is shown exactly when one is wanted; so the sampler holds one frame back.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._fps = None if sampling.fps is None else Fraction(sampling.fps)
        self._held: _Item | None = None
        self._begin_s: Fraction | None = None
        self._last_s = Fraction(0)
        # How many times of the grid lie behind.
        self._passed = 0
        self._ended = False

    @property
    def done(self) -> bool:
        """Whether no frame will be taken any more."""
        limit = self._sampling.num_frames
        return self._ended or (limit is not None and self._passed >= limit)

    @property
    def by_time(self) -> bool:
        """Whether frames are chosen by when they are shown."""
        return self._fps is not None

    def add(self, index: int, time_s: Fraction, item: _Item) -> list[_Item]:
        """The next frame, as ``item``; returns those that are now known to be taken, each once, in order.

        ``index`` is its number in the order of display, ``time_s`` when it is shown, read for ``fps``; both ascend.
        """
        if self.done or index < self._sampling.start_frame:
            return []
        if self._sampling.end_frame is not None and index >= self._sampling.end_frame:
            taken = self._pass_until(time_s)
            self._held, self._ended = None, True
            return taken
        if self._fps is None:
            if self.skips(index, time_s, None):
                return []
            self._passed += 1
            return [item]
        if self._begin_s is None:
            self._begin_s = time_s
        taken = self._pass_until(time_s)
        self._held, self._last_s = item, time_s
        if not self.done and (time_s - self._begin_s) * self._fps == self._passed:
            taken.append(item)
            self._held = None
            self._passed += 1
        return taken

    def end(self, end_s: Fraction) -> list[_Item]:
        """The stream is over, its last frame shown until ``end_s``; returns what is taken of it."""
        taken = [] if self.done else self._pass_until(end_s)
        self._held, self._ended = None, True
        return taken

    def skips(self, index: int, time_s: Fraction, next_s: Fraction | None) -> bool:
        """Whether a frame to come is certainly not taken, so that it need not be decoded.

        ``next_s`` is when the frame after it is shown, None where that is not known.
        """
        if self.done or index < self._sampling.start_frame:
            return True
        if self._fps is None:
            return (index - self._sampling.start_frame) % self._sampling.stride != 0
        # The frame at which the choice ends must be seen, whatever its time.
        if self._begin_s is None or next_s is None or not self._last_s < time_s < next_s:
            return False
        return index != self._sampling.end_frame and self._count_until(time_s) == self._count_until(next_s)

    def _count_until(self, time_s: Fraction) -> int:
        """The number of the grid's times that lie before a time."""
        assert self._fps is not None
        assert self._begin_s is not None
        return -int(-(time_s - self._begin_s) * self._fps // 1)

    def _pass_until(self, time_s: Fraction) -> list[_Item]:
        """The held frame is shown until ``time_s``: it is taken where a time of the grid lies before."""
        if self._fps is None or self._begin_s is None:
            return []
        count = self._count_until(time_s)
        if count <= self._passed:
            return []
        self._passed = count
        held, self._held = self._held, None
        return [] if held is None else [held]
