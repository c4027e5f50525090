"""The interface of a backend for video: RGB of chosen frames of an open video."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from onestream.preprocess.errors import BadSample
from onestream.preprocess.geometry import Size, Window
from onestream.preprocess.video.clips.decode import VideoFile
from onestream.preprocess.video.common.color import ColorRule, Pixels, planes_of, to_rgb, to_rgb_reference
from onestream.preprocess.video.common.orientation import Orientation, orientation_of

VideoBackend = Literal["reference", "pyav", "dali"]
WindowOf = Callable[[Size], Window]
"""From the (height, width) of a video as displayed, the part that is needed."""


class Frames(ABC):
    """Reads frames. An instance is not thread-safe."""

    @abstractmethod
    def read(self, video: VideoFile, numbers: Sequence[int], window_of: WindowOf) -> Iterator[tuple[int, Pixels, Size]]:
        """Frames by number, each once, as (number, RGB of the window, displayed (height, width) of the whole).

        Raises ``BadSample`` naming file and frame.
        """

    def close(self) -> None:  # noqa: B027 (most backends hold nothing)
        """Release what the backend holds."""


class PyavFrames(Frames):
    """Decoded by PyAV on the CPU; only the window is converted to RGB.

    ``literally``: by the NumPy specification of the colour conversion instead of the compiled one.
    """

    def __init__(self, rule: ColorRule, *, literally: bool = False) -> None:
        self._rule = rule
        self._to_rgb = to_rgb_reference if literally else to_rgb

    def read(self, video: VideoFile, numbers: Sequence[int], window_of: WindowOf) -> Iterator[tuple[int, Pixels, Size]]:
        """See ``Frames.read``."""
        orientation: Orientation | None = None
        for number, frame in video.frames(numbers):
            try:
                planes = planes_of(frame)
                # It belongs to the track, not to the frame.
                orientation = orientation or orientation_of(frame)
                displayed = orientation.displayed_size(planes.size_hw)
                stored = orientation.stored_window(window_of(displayed), planes.size_hw)
                yield number, orientation.turn(self._to_rgb(planes, self._rule, stored)), displayed
            except ValueError as error:
                raise BadSample(f"{video.name}: frame {number}: {error}") from None
