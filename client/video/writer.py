"""Encoded frames of a stream's results into a file, as they are."""

from __future__ import annotations

import io
import os
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onestream.client.errors import OnestreamError
from onestream.client.video.results import EncodedFrame, FrameResult
from onestream.client.video.sound import LATEST_S, Sound, SoundCopy

if TYPE_CHECKING:
    from av.container import OutputContainer

_TIME_BASE = Fraction(1, 90_000)
_USUAL_FPS = 30.0
_LONGEST_STEP = 90_000
"""A gap of more than a second is no measure of how long frames are shown."""


class CannotWrite(OnestreamError):
    """A video file cannot be written; the text names it and says why."""


class VideoWriter:
    """Writes the frames that a composing pipeline sends (``FrameResult.video``) into a file; nothing is decoded.

    The name's ending chooses the container: .mp4, .mkv, .mov, …. The file appears with the first key frame. Frames have
    the times of the stream, from 0 on. Where the picture changes its size, a new file begins, ``NAME-2.mp4`` and so on.
    ``sound``, which was given to the stream, is written beside them. A context manager, which finishes the file. Raises
    ``CannotWrite``.
    """

    def __init__(self, path: str | os.PathLike[str], *, fps: float = _USUAL_FPS, sound: Sound | None = None) -> None:
        """``fps`` is the rate of all frames of the stream, sampled or not, where its packets state no times."""
        self._path, self._sound = Path(path), sound
        self._copy: SoundCopy | None = None
        self._left_out: list[str] = []
        self._paths: list[Path] = []
        self._container: OutputContainer | None = None
        self._stream: Any = None
        self._kind: object = None
        self._first_s: float | None = None
        self._last, self._last_index = -1, -1
        self._frame = self._step = round(1 / fps / _TIME_BASE)

    @property
    def paths(self) -> list[Path]:
        """The files so far."""
        return list(self._paths)

    @property
    def left_out(self) -> list[str]:
        """A line for each track of sound that the container does not take."""
        return list(self._left_out)

    def write(self, result: FrameResult) -> None:
        """Add a result's frame. Raises ``ValueError`` for a result without one."""
        import av

        frame = result.video
        if frame is None:
            raise ValueError(f"frame {result.frame_index} has no picture; only a pipeline with video.output sends them")
        kind = (frame.width, frame.height)
        try:
            if frame.is_key and kind != self._kind:
                self._finish(is_last=False)
                self._begin(frame)
                self._kind = kind
            if self._container is None:
                # Nothing can be shown before the first key frame.
                return
            packet = av.Packet(frame.data)
            packet.stream, packet.time_base, packet.is_keyframe = self._stream, _TIME_BASE, frame.is_key
            packet.pts = packet.dts = self._time(result)
            packet.duration = self._step
            self._container.mux(packet)
            if self._copy is not None and self._first_s is not None:
                self._copy.write(self._end_s(), origin_s=self._first_s)
        except (av.FFmpegError, OSError) as error:
            raise CannotWrite(f"{self._current}: {getattr(error, 'strerror', None) or error}") from None

    def close(self) -> None:
        """Finish the file. May be called twice."""
        import av

        try:
            self._finish(is_last=True)
        except (av.FFmpegError, OSError) as error:
            raise CannotWrite(f"{self._current}: {getattr(error, 'strerror', None) or error}") from None

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _current(self) -> Path:
        return self._paths[-1] if self._paths else self._path

    def _begin(self, frame: EncodedFrame) -> None:
        import av

        number = len(self._paths) + 1
        path = self._path if number == 1 else self._path.with_stem(f"{self._path.stem}-{number}")
        self._paths.append(path)
        try:
            # PyAV itself opens the file only when the first packet is written.
            path.open("wb").close()
            self._container = av.open(str(path), "w")
        except ValueError as error:
            raise CannotWrite(f"{path}: {error}") from None
        # A container's header holds what the key frame's own headers say.
        try:
            with av.open(io.BytesIO(frame.data), format="h264") as probe:
                self._stream = self._container.add_stream_from_template(probe.streams.video[0])
        except ValueError as error:
            self._finish(is_last=True)
            raise CannotWrite(f"{path}: this container takes no H.264: {error}") from None
        self._stream.time_base = _TIME_BASE
        self._first_s, self._last = None, -1
        if self._sound is not None:
            self._copy = SoundCopy(self._sound, self._container, str(path))
            self._left_out += self._copy.left_out

    def _finish(self, *, is_last: bool) -> None:
        container, self._container = self._container, None
        copy, self._copy = self._copy, None
        if container is None:
            return
        try:
            if copy is not None and self._first_s is not None:
                copy.write(self._end_s() + (LATEST_S if is_last else 0), origin_s=self._first_s)
        finally:
            container.close()

    def _end_s(self) -> float:
        """When the newest frame ends, in seconds of the source."""
        return (self._first_s or 0.0) + float((self._last + self._step) * _TIME_BASE)

    def _time(self, result: FrameResult) -> int:
        """When the frame is shown; where the stream says nothing, by its number; where its clock was set back, next."""
        at = self._last + self._step if self._last >= 0 else 0
        if result.pts_seconds is None:
            if self._last >= 0:
                at = self._last + self._frame * max(1, result.frame_index - self._last_index)
        else:
            if self._first_s is None:
                self._first_s = result.pts_seconds - float(at * _TIME_BASE)
            told = round((result.pts_seconds - self._first_s) / _TIME_BASE)
            if told > self._last:
                at = told
                if self._last >= 0 and at - self._last <= _LONGEST_STEP:
                    self._step = at - self._last
            elif self._last - told > _LONGEST_STEP:
                # The clock was set back; a time that is merely repeated moves nothing that follows.
                self._first_s = result.pts_seconds - float(at * _TIME_BASE)
        self._last, self._last_index = at, result.frame_index
        return at
