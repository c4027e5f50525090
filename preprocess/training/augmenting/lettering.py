"""The operations for lines of text: where the letters stand, and what they stand on. The text stays."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from onestream.preprocess.changes import Background
from onestream.preprocess.training.augmenting.draft import AugmentationOperation, Draft, Share, Use, ordered
from onestream.preprocess.training.augmenting.moving import MovingOperation
from onestream.preprocess.variation import Warp

_MOST_DISTANCE = 0.15
"""Of the spacing. Keys's cubic is at most 2.5 times as steep as what it joins, so that nothing is folded."""
_ShareRange = Annotated[tuple[Share, Share], AfterValidator(ordered)]


class RandomWarp(MovingOperation):
    """The canvas bent a little: the points of a grid move, and all between them follows smoothly (``warp.Warp``).

    The points are ``spacing`` times the canvas's shorter side apart, or a little more. Each moves by up to ``distance``
    times that side to either side in x and in y, drawn uniformly. After the points that C. Luo et al., *Learn to
    Augment* (2020), move along the edges of a line of text.
    """

    op: Literal["warp"] = "warp"
    uses: ClassVar[frozenset[Use]] = frozenset({"classes", "masks", "lines", "clips"})
    distance: Annotated[float, Field(ge=0, le=_MOST_DISTANCE)] = 0.1
    spacing: Annotated[float, Field(ge=0.05, le=1)] = 1.0

    @model_validator(mode="after")
    def _does_not_fold(self) -> RandomWarp:
        most = _MOST_DISTANCE * self.spacing
        if self.distance > most:
            raise ValueError(f"distance must be at most {_MOST_DISTANCE} x spacing = {most:g}, got {self.distance:g}")
        return self

    def _draw(self, draft: Draft) -> None:
        short = min(draft.canvas_hw)
        rows, columns = (max(2, int(side / (self.spacing * short)) + 1) for side in draft.canvas_hw)
        moved = draft.random.uniform(-self.distance, self.distance, (rows, columns, 2)) * short
        draft.warp = Warp(moved=tuple(tuple((x, y) for x, y in row) for row in moved.tolist()))


class RandomBackground(AugmentationOperation):
    """What the letters stand on, tinted: with four colours, drawn uniformly, at the corners of the canvas.

    ``share``: how much of them is mixed in, drawn uniformly. The letters stay, and of their contrast in luma at least
    1 - share is left (``changes.Background``).
    """

    op: Literal["background"] = "background"
    uses: ClassVar[frozenset[Use]] = frozenset({"lines"})
    share: _ShareRange = (0.2, 0.6)

    def _draw(self, draft: Draft) -> None:
        one, two, three, four = draft.random.integers(0, 256, (4, 3)).tolist()
        share = draft.random.uniform(*self.share)
        draft.changes.append(Background(colors=(tuple(one), tuple(two), tuple(three), tuple(four)), share=share))
