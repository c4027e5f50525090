"""Tracks: which objects of a video's frames are the same one. ByteTrack, by the package supervision."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from onestream.client.kinds.detection import NO_TRACK, Detections
from onestream.client.video.results import FrameResult
from onestream.wire.install import install_command


class Tracker:
    """Numbers the objects of one stream, the same object with the same number; numbers begin with 1, none comes twice.

    An object is numbered from the second frame on in which it is found (in the stream's first frame at once) where its
    score is 0.35 or more; less, above 0.1, goes on with a track. It keeps its number where it is found again within
    ``lost_frames`` results. A frame that was dropped counts as one in which nothing was found; frames that the pipeline
    does not sample do not count. After a lost connection (``FrameResult.after_gap``) all objects are new.

    Classes are not looked at. An instance is for one stream and not thread-safe. Raises ``ImportError`` where the
    package supervision is missing.
    """

    def __init__(self, *, lost_frames: int = 30) -> None:
        if lost_frames < 1:
            raise ValueError(f"lost_frames must be 1 or more, got {lost_frames}")
        self._lost_frames = lost_frames
        self._tracks = _byte_track(lost_frames)
        self._last_index = self._step = -1
        self._before = self._newest = 0

    def update(self, frame: FrameResult) -> FrameResult:
        """The stream's next frame with ``result.track_ids``. Raises ``ValueError`` where it has no ``Detections``."""
        found = frame.result
        if not isinstance(found, Detections):
            raise ValueError(f"frame {frame.frame_index} has no boxes; only the objects of a detector can be tracked")
        if frame.after_gap:
            self._tracks, self._before, self._last_index = _byte_track(self._lost_frames), self._newest, -1
        given = replace(found, track_ids=None).to_supervision()
        for _ in range(self._missing(frame.frame_index)):
            self._tracks.update_with_detections(given.empty())
        given.data["place"] = np.arange(len(found))
        tracked = self._tracks.update_with_detections(given)
        track_ids = np.full(len(found), NO_TRACK, np.int32)
        if len(tracked):
            track_ids[tracked.data["place"]] = tracked.tracker_id + self._before
        self._newest = max(self._newest, int(track_ids.max(initial=0)))
        return replace(frame, result=replace(found, track_ids=track_ids))

    def _missing(self, index: int) -> int:
        """How many frames were dropped before this one, at most as many as end every track."""
        last, self._last_index = self._last_index, index
        if last < 0:
            return 0
        # Of a sampled video every so-many-th frame comes.
        self._step = index - last if self._step < 0 else min(self._step, index - last)
        return min((index - last) // max(1, self._step) - 1, self._lost_frames + 1)


def tracked(frames: Iterable[FrameResult], *, lost_frames: int = 30) -> Iterator[FrameResult]:
    """The results of a stream, each with ``result.track_ids``, as a ``Tracker`` gives them.

    Raises ``ImportError`` where the package supervision is missing, and ``ValueError`` for results without boxes.
    """
    tracker = Tracker(lost_frames=lost_frames)
    for frame in frames:
        yield tracker.update(frame)


def _byte_track(lost_frames: int) -> Any:
    """A new tracker of the library."""
    try:
        from supervision import ByteTrack
    except ImportError as error:
        raise ImportError(f"tracks need the package supervision 0.30: {install_command('detect')}") from error
    with warnings.catch_warnings():
        # It moves to the package trackers, which needs NumPy 2.
        warnings.simplefilter("ignore", FutureWarning)
        return ByteTrack(lost_track_buffer=lost_frames)
