"""Writes the file of ``onestream stream -o``: the pipeline's own frames, or the stream with its labels or objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from onestream.cli.annotate import AnnotatedVideo
from onestream.client.video import FrameResult, Sound, VideoWriter
from onestream.wire.video import Open, Packet


class Output:
    """One video file; the first result decides which kind. ``sent`` may be called by another thread than the rest.

    The stream is to fill ``sound``.
    """

    def __init__(self, path: Path, caption: Callable[[FrameResult], str]) -> None:
        self._path, self.sound = path, Sound()
        self._annotated: AnnotatedVideo | None = AnnotatedVideo(path, caption, sound=self.sound)
        self._composed: VideoWriter | None = None

    @property
    def left_out(self) -> list[str]:
        """A line for each track of sound that is not in the file, because its container does not take it."""
        writer = self._composed or self._annotated
        return [] if writer is None else writer.left_out

    def sent(self, packet: Packet) -> None:
        """A packet went to the server."""
        annotated = self._annotated
        if annotated is not None:
            annotated.sent(packet)

    def show(self, result: FrameResult, format: Open) -> None:
        """A result came. Raises ValueError or ``CannotWrite`` where the file cannot be written."""
        if result.video is not None:
            if self._composed is None:
                # Its packets are needed no more.
                self._annotated, self._composed = None, VideoWriter(self._path, sound=self.sound)
            self._composed.write(result)
        elif self._annotated is not None:
            self._annotated.show(result, format)

    def close(self) -> None:
        """Finish the file."""
        if self._composed is not None:
            self._composed.close()
        elif self._annotated is not None:
            self._annotated.close()
