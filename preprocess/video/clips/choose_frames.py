"""Chooses the frames of a clip: one pure function for every backend.

A clip is a list of frame numbers in display order, counted from 0. ``None`` in it is a frame of a constant level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from onestream.preprocess.variation import AS_FILMED, Timing

PadMode = Literal["constant", "edge", "reflect", "none"]
Chosen = list[int | None]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The times of a video's frames: ``pts`` strictly ascending, and the end of the last, in ``time_base`` s."""

    pts: npt.NDArray[np.int64]
    end_pts: int
    time_base: Fraction

    def __len__(self) -> int:
        """Number of frames."""
        return len(self.pts)

    def frame_at(self, time_s: Fraction) -> int:
        """The frame shown at a time: the last one whose pts is not after it. -1 before the first."""
        return int(np.searchsorted(self.pts, time_s // self.time_base, side="right")) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """A choice of frames of any video.

    ``num_frames`` frames from ``start_frame``, every ``stride``-th, before ``end_frame`` (exclusive; None is the end of
    the video). ``num_frames`` None takes all there are. ``fps`` replaces the stride: the k-th frame is the one shown
    k / fps seconds after ``start_frame``, so that a variable frame rate becomes a constant one.

    Where the frames do not suffice, ``pad_mode`` fills up to ``num_frames``: *constant* with frames of ``pad_level``
    (0 to 255), *edge* with the last frame, *reflect* with the clip mirrored at its last and first frame (abcbabc…),
    *none* not at all: the clip is shorter.

    ``frames`` lists the frames instead, in any order, with repeats; all must exist. Raises ``ValueError`` for options
    out of range or against each other.
    """

    num_frames: int | None = None
    start_frame: int = 0
    end_frame: int | None = None
    stride: int = 1
    fps: float | Fraction | None = None
    frames: tuple[int, ...] | None = None
    pad_mode: PadMode = "none"
    pad_level: int = 0

    def __post_init__(self) -> None:
        if self.frames is not None:
            self._check_frames(self.frames)
        for name, lowest in (("num_frames", 1), ("start_frame", 0), ("stride", 1), ("pad_level", 0)):
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise ValueError(f"{name} must be at least {lowest}, got {value}")
        if self.pad_level > 255:
            raise ValueError(f"pad_level must be at most 255, got {self.pad_level}")
        if self.end_frame is not None and self.end_frame <= self.start_frame:
            raise ValueError(f"end_frame {self.end_frame} must be after start_frame {self.start_frame}")
        if self.pad_mode not in get_args(PadMode):
            raise ValueError(f"pad_mode must be one of {', '.join(get_args(PadMode))}; got {self.pad_mode!r}")
        if self.fps is not None and not 0 < self.fps < float("inf"):
            raise ValueError(f"fps must be above 0, got {self.fps}")
        if self.fps is not None and self.stride != 1:
            raise ValueError(f"fps replaces stride; got fps {self.fps} and stride {self.stride}")
        if self.num_frames is None and self.frames is None and self.pad_mode != "none":
            raise ValueError(f"pad_mode {self.pad_mode!r} needs num_frames, the length to pad to")

    def _check_frames(self, frames: tuple[int, ...]) -> None:
        if not frames:
            raise ValueError("frames is empty; expected at least one frame number")
        if min(frames) < 0:
            raise ValueError(f"frames must be 0 or more, got {min(frames)}")
        others = (self.num_frames, self.start_frame, self.end_frame, self.stride, self.fps, self.pad_mode)
        if others != (None, 0, None, 1, None, "none"):
            raise ValueError(
                "frames stands alone; it takes no num_frames, start_frame, end_frame, stride, fps, pad_mode"
            )

    @property
    def length(self) -> int | None:
        """Frames in every clip; None where it depends on the video."""
        if self.frames is not None:
            return len(self.frames)
        return None if self.pad_mode == "none" else self.num_frames


def choose_frames(clip: Clip, timeline: Timeline, timing: Timing = AS_FILMED) -> Chosen:
    """The frames of a clip of one video.

    At another speed than the video's own the k-th frame is the one so many times as far from the first: of a stride
    the number is rounded down. A later start than ``start_frame`` is one from which the clip needs no padding, all of
    them equally often for a uniform ``timing.start``. What is padded is padded before frames are lost.

    Raises ``ValueError`` saying how many frames the video has, where ``start_frame`` is past the end or a listed frame
    does not exist; and where listed frames are to have another speed or start.
    """
    chosen = _at_speed(clip, timeline, timing)
    for place in timing.lost:
        if place < len(chosen):
            chosen[place] = chosen[place - 1]
    return chosen


def _at_speed(clip: Clip, timeline: Timeline, timing: Timing) -> Chosen:
    count, speed = len(timeline), Fraction(timing.speed)
    if clip.frames is not None:
        if speed != 1 or timing.start:
            raise ValueError(
                "frames lists the frames themselves, which have no other speed or start; give num_frames instead"
            )
        missing = [frame for frame in clip.frames if frame >= count]
        if missing:
            raise ValueError(f"frame {missing[0]} was asked for, of a video of {count} frames")
        return list(clip.frames)
    if clip.start_frame >= count:
        raise ValueError(f"start_frame {clip.start_frame} is past the end of a video of {count} frames")
    end = count if clip.end_frame is None else min(clip.end_frame, count)
    if clip.fps is None:
        step = clip.stride * speed
        start = _start(clip, timing, latest=end - 1 - int(step * _gaps(clip)))
        available = -int(-(end - start) // step)
        count_there = available if clip.num_frames is None else min(available, clip.num_frames)
        there = [start + k * step.numerator // step.denominator for k in range(count_there)]
    else:
        fps = Fraction(clip.fps) / speed
        before_s = _end_pts(timeline, end) * timeline.time_base - _gaps(clip) / fps
        latest = int(np.searchsorted(timeline.pts[:end], -(-before_s // timeline.time_base))) - 1
        there = _at_rate(timeline, _start(clip, timing, latest=latest), end, fps, clip.num_frames)
    missing_count = 0 if clip.num_frames is None else clip.num_frames - len(there)
    return [*there, *_padding(there, missing_count, clip.pad_mode)]


def _gaps(clip: Clip) -> int:
    """Steps from the first frame to the last."""
    return 0 if clip.num_frames is None else clip.num_frames - 1


def _start(clip: Clip, timing: Timing, *, latest: int) -> int:
    """The first frame, where ``latest`` is the last one from which the clip needs no padding."""
    if clip.num_frames is None:
        return clip.start_frame
    room = max(0, latest - clip.start_frame)
    return clip.start_frame + min(room, int(Fraction(timing.start) * (room + 1)))


def _end_pts(timeline: Timeline, end: int) -> int:
    return timeline.end_pts if end == len(timeline) else int(timeline.pts[end])


def _at_rate(timeline: Timeline, start: int, end: int, fps: Fraction, limit: int | None) -> list[int]:
    """The frames shown from the one numbered ``start`` on at a constant rate, until the one numbered ``end`` is."""
    begin_s = int(timeline.pts[start]) * timeline.time_base
    # The number of k with begin + k / fps < end.
    available = -int(-(_end_pts(timeline, end) * timeline.time_base - begin_s) * fps // 1)
    available = max(available, 1)
    taken = available if limit is None else min(available, limit)
    return [timeline.frame_at(begin_s + k / fps) for k in range(taken)]


def _padding(there: Sequence[int], count: int, mode: PadMode) -> Chosen:
    if mode == "none":
        return []
    if mode == "constant":
        return [None] * count
    if mode == "edge" or len(there) == 1:
        return [there[-1]] * count
    period = [*there, *there[-2:0:-1]]
    return [period[n % len(period)] for n in range(len(there), len(there) + count)]
