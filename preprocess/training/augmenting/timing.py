"""The operations that change when the frames of a clip are taken."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from onestream.preprocess.training.augmenting.draft import Operation, PositiveRange, Share, Use
from onestream.preprocess.variation import Timing


@dataclass(slots=True)
class TimingDraft:
    """The timing of one clip of so many ``frames`` while it is drawn."""

    random: np.random.Generator
    frames: int
    start: float = 0.0
    speed: float = 1.0
    lost: set[int] = field(default_factory=set)

    def timing(self) -> Timing:
        """What was drawn."""
        return Timing(speed=self.speed, start=self.start, lost=tuple(sorted(self.lost)))


class ClipOperation(Operation):
    """Base of the operations on a clip's times: they add to a draft what they draw."""

    uses: ClassVar[frozenset[Use]] = frozenset({"clips"})

    def draw(self, draft: TimingDraft) -> None:
        """Draw, if it happens."""
        if self.happens(draft.random):
            self._draw(draft)

    def _draw(self, draft: TimingDraft) -> None:
        raise NotImplementedError


class Speed(ClipOperation):
    """The video so many times as fast: a factor drawn from ``factor``, uniformly in its logarithm.

    A faster clip leaves frames out and ends later in the video; a slower one shows frames again.
    """

    op: Literal["speed"] = "speed"
    factor: PositiveRange = (0.5, 2.0)

    def _draw(self, draft: TimingDraft) -> None:
        low, high = (math.log(value) for value in self.factor)
        draft.speed *= math.exp(draft.random.uniform(low, high))


class RandomStart(ClipOperation):
    """The first frame, each equally often from which the clip needs no padding, from ``start_frame`` on."""

    op: Literal["random_start"] = "random_start"

    def _draw(self, draft: TimingDraft) -> None:
        draft.start = draft.random.random()


class DropFrames(ClipOperation):
    """Frames that are lost, each but the first with the probability ``share``: the frame before is shown once more.

    So a camera or a network shows a stream that they cannot keep up with.
    """

    op: Literal["drop_frames"] = "drop_frames"
    share: Share = 0.1

    def _draw(self, draft: TimingDraft) -> None:
        drawn = draft.random.random(draft.frames - 1)
        draft.lost.update(int(place) + 1 for place in (drawn < self.share).nonzero()[0])
