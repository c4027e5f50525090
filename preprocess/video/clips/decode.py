"""Decodes chosen frames of a video on the CPU, with PyAV (FFmpeg).

Frames are decoded in ascending order from the keyframe before them. Of H.264, frames that are neither wanted nor
referred to by others are not decoded at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import numpy.typing as npt

from onestream.preprocess.errors import BadSample
from onestream.preprocess.limits import Limits
from onestream.preprocess.video.clips.probe import Index, VideoSource, index_of, open_video, packets_of
from onestream.preprocess.video.common.color import ColorRule, Colors, planes_of, resolved

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.frame import VideoFrame

_SKIPPABLE = {"h264"}
"""Codecs of which a frame that is marked as no reference is no reference of any other."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Frames that are decoded in one go: packets ``first`` to ``last`` (inclusive) in the order of storage."""

    first: int
    last: int
    frames: tuple[int, ...]


class VideoFile:
    """An open video: its frames' times, and its frames.

    ``name`` is what messages call it, by default its path. ``threads``: FFmpeg's. Raises ``BadSample`` naming the file,
    and the frame where it is cut or damaged. An instance is not thread-safe.
    """

    def __init__(
        self, source: VideoSource, *, name: str | None = None, threads: int = 1, limits: Limits | None = None
    ) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        self.name = name or ("video" if isinstance(source, bytes) else os.fspath(source))
        self.source, self._threads, self._limits = source, threads, limits or Limits()
        self._container, self._stream = open_video(source, self.name, threads=threads)
        try:
            context = self._stream.codec_context
            self.codec = context.codec.canonical_name
            self._stored_hw = (context.height, context.width)
            self._check_size(*self._stored_hw)
            self.index: Index = index_of(source, self.name, threads=threads)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        """Number of frames."""
        return len(self.index.timeline)

    def frames(self, wanted: Iterable[int]) -> Iterator[tuple[int, VideoFrame]]:
        """The wanted frames, each once, ascending, as (number, frame in the codec's own colours).

        Raises ``BadSample`` naming the frame that cannot be decoded or has another size than the video.
        """
        numbers = sorted(set(wanted))
        if numbers and not 0 <= numbers[0] <= numbers[-1] < len(self):
            raise ValueError(f"frames must be from 0 to {len(self) - 1}, got {numbers[0]} to {numbers[-1]}")
        if not self.index.by_packets:
            yield from self._from_the_beginning(numbers)
            return
        left, runs = list(numbers), self._runs(numbers)
        try:
            for run in runs:
                for number, frame in self._decode(run):
                    left.remove(number)
                    yield number, frame
        except BadSample:
            # Of an open group of pictures, H.264 may need more than the keyframe. From the start all is there.
            if runs[0].first == 0 and len(runs) == 1:
                raise
            yield from self._decode(self._run_from_the_start(left))

    def colors(self, rule: ColorRule | None = None) -> Colors:
        """By which matrix and range its frames become RGB, and whether the file says so; decodes the first frame.

        Raises ``BadSample`` where that cannot be decoded, or ``rule`` cannot be resolved for it.
        """
        _, frame = next(self.frames([0]))
        try:
            planes = planes_of(frame)
            return resolved(planes, rule or ColorRule())
        except ValueError as error:
            raise BadSample(f"{self.name}: frame 0: {error}") from None

    def close(self) -> None:
        """Close the file."""
        self._container.close()

    def __enter__(self) -> VideoFile:
        """The file itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _runs(self, numbers: Sequence[int]) -> list[_Run]:
        """Cut the wanted frames where it is shorter to start again at a later keyframe."""
        order, position = self.index.numbers, self._positions()
        keys = np.flatnonzero(self.index.is_key & (order >= 0))
        runs: list[_Run] = []
        for number in numbers:
            at = int(position[number])
            # A frame that is stored after a keyframe but shown before it refers to frames before the keyframe.
            starts = keys[(keys <= at) & (order[keys] <= number)]
            first = int(starts[-1]) if len(starts) else 0
            if runs and first <= runs[-1].last + 1:
                runs[-1] = _Run(runs[-1].first, max(at, runs[-1].last), (*runs[-1].frames, number))
            else:
                runs.append(_Run(first, at, (number,)))
        return runs

    def _run_from_the_start(self, numbers: Sequence[int]) -> _Run:
        return _Run(0, int(self._positions()[list(numbers)].max()), tuple(numbers))

    def _positions(self) -> npt.NDArray[np.int64]:
        """The place in storage of every frame."""
        order = self.index.numbers
        position = np.empty(len(self), np.int64)
        position[order[order >= 0]] = np.flatnonzero(order >= 0)
        return position

    def _decode(self, run: _Run) -> Iterator[tuple[int, VideoFrame]]:
        missing = list(run.frames)
        for frame in self._outputs(run):
            number = self._number(frame)
            if number in missing:
                missing.remove(number)
                yield number, self._checked(number, frame)
        if missing:
            raise BadSample(f"{self.name}: frame {missing[0]}: the decoder gives no picture for it")

    def _outputs(self, run: _Run) -> Iterator[VideoFrame]:
        """Whatever the decoder gives for a run."""
        order, wanted = self.index.numbers, set(run.frames)
        number = run.frames[0]
        try:
            for at, packet in self._packets(run.first):
                if at > run.last:
                    break
                if 0 <= order[at] < order[run.first]:
                    # It is shown before the keyframe and refers to frames before it.
                    continue
                number = max(int(order[at]), 0)
                skips = self.codec in _SKIPPABLE and number not in wanted
                self._stream.codec_context.skip_frame = "NONREF" if skips else "DEFAULT"
                yield from self._stream.codec_context.decode(packet)
            self._stream.codec_context.skip_frame = "DEFAULT"
            yield from self._stream.codec_context.decode(None)
        except (av.FFmpegError, OSError) as error:
            if self._threads > 1:
                # Several threads report an error late; one names the right frame.
                self._threads = 1
                self._reopen()
                yield from self._outputs(run)
            raise BadSample(f"{self.name}: frame {number}: cannot be decoded: {error.strerror}") from None

    def _packets(self, first: int) -> Iterator[tuple[int, Packet[Any]]]:
        """Packets from the one at place ``first`` on, with their places."""
        times, order = self.index.timeline.pts, self.index.numbers
        target = int(times[order[first]]) if order[first] >= 0 else int(times[0])
        place = {int(times[number]): at for at, number in enumerate(order) if number >= 0}
        self._container.seek(target, stream=self._stream)
        self._stream.codec_context.flush_buffers()
        packets = packets_of(self._container, self._stream)
        for packet in packets:
            at = -1 if packet.pts is None else place.get(packet.pts, -1)
            if at >= first:
                break
        if at != first:
            # The container's own index led past the keyframe.
            self._reopen()
            packets = packets_of(self._container, self._stream)
            packet = next(islice(packets, first, None))
        yield first, packet
        yield from ((at, packet) for at, packet in enumerate(packets, start=first + 1) if packet.size)

    def _from_the_beginning(self, numbers: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        self._reopen()
        wanted, count = set(numbers), 0
        try:
            decoded = (frame for packet in packets_of(self._container, self._stream) for frame in packet.decode())
            for count, frame in enumerate(decoded):
                if count in wanted:
                    yield count, self._checked(count, frame)
                if numbers and count == numbers[-1]:
                    return
        except (av.FFmpegError, OSError) as error:
            raise BadSample(
                f"{self.name}: frame {count} or one soon after it: cannot be decoded: {error.strerror}"
            ) from None

    def _reopen(self) -> None:
        self._container.close()
        self._container, self._stream = open_video(self.source, self.name, threads=self._threads)

    def _number(self, frame: VideoFrame) -> int:
        times = self.index.timeline.pts
        at = int(np.searchsorted(times, frame.pts)) if frame.pts is not None else len(times)
        return at if at < len(times) and times[at] == frame.pts else -1

    def _checked(self, number: int, frame: VideoFrame) -> VideoFrame:
        if frame.is_corrupt:
            raise BadSample(f"{self.name}: frame {number}: is damaged")
        if (frame.height, frame.width) != self._stored_hw:
            raise BadSample(
                f"{self.name}: frame {number}: has {frame.width}x{frame.height} pixels in a video of "
                f"{self._stored_hw[1]}x{self._stored_hw[0]}; the size may not change within a video"
            )
        return frame

    def _check_size(self, height: int, width: int) -> None:
        if height * width > self._limits.max_pixels:
            raise BadSample(
                f"{self.name}: frame 0: has {width}x{height} = {height * width} pixels; "
                f"at most {self._limits.max_pixels} are allowed"
            )
