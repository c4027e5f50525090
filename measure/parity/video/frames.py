"""Which frames of a clip are compared, and what every subject that reads clips has in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onestream.measure.parity.subject import Observation, Refused, Subject
from onestream.preprocess import BadSample, Limits
from onestream.preprocess.tolerances import Source
from onestream.preprocess.video import Clip, ColorRule, Colors, VideoFile, choose_frames
from onestream.preprocess.video.common.color import planes_of
from onestream.serving.stream_options import VideoOptions


@dataclass(frozen=True, slots=True)
class ComparedClip:
    """A video file, the numbers of its frames that are compared (ascending), and how they become RGB.

    ``source``: *plain* has 8 bits a sample, *converted* more.
    """

    path: Path
    numbers: tuple[int, ...]
    colors: Colors
    source: Source = "plain"


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a clip; what reads it reads all that are compared at once."""

    clip: ComparedClip
    number: int

    @property
    def name(self) -> str:
        """The file and the number."""
        return f"{self.clip.path}, frame {self.number}"

    @property
    def source(self) -> Source:
        """The clip's."""
        return self.clip.source


class ClipReader(Subject[Frame]):
    """A subject that reads all the frames of a clip at once; the last clip's are kept."""

    _kept: tuple[ComparedClip, Sequence[Observation] | Refused] | None = None

    @abstractmethod
    def read(self, clip: ComparedClip) -> Sequence[Observation]:
        """Process the frames of a clip, in the order of their numbers. Raises ``Refused`` where there is no result."""

    def observe(self, item: Frame) -> Observation:
        """See ``Subject.observe``."""
        if self._kept is None or self._kept[0] != item.clip:
            try:
                self._kept = item.clip, self.read(item.clip)
            except Refused as error:
                self._kept = item.clip, error
        seen = self._kept[1]
        if isinstance(seen, Refused):
            raise seen
        return seen[item.clip.numbers.index(item.number)]


def rule_of(options: VideoOptions) -> ColorRule:
    """The pipeline's rule of colours."""
    color = options.color
    return ColorRule(matrix=color.matrix, range=color.range, transfer=color.transfer)


def read_clips(
    paths: Sequence[Path], *, options: VideoOptions, most: int, limits: Limits
) -> tuple[list[ComparedClip], dict[str, str]]:
    """``most`` frames of each clip at even distances, of those that the sampling takes; and why others are unreadable.

    Raises ``ValueError`` where ``most`` is below 1.
    """
    if most < 1:
        raise ValueError(f"at least 1 frame of a clip can be compared, got {most}")
    found: list[ComparedClip] = []
    unreadable: dict[str, str] = {}
    for path in paths:
        try:
            with VideoFile(path, limits=limits) as video:
                sampled = choose_frames(Clip(**options.sampling.model_dump()), video.index.timeline)
                taken = sorted({number for number in sampled if number is not None})
                places = np.linspace(0, len(taken) - 1, min(most, len(taken))).round().astype(int)
                numbers = tuple(taken[place] for place in places)
                colors = video.colors(rule_of(options))
                depth = planes_of(next(video.frames([0]))[1]).depth
                found.append(ComparedClip(path, numbers, colors, "plain" if depth == 8 else "converted"))
        except (BadSample, ValueError) as error:
            unreadable[str(path)] = str(error).removeprefix(f"{path}: ")
    return found, unreadable
