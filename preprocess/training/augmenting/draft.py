"""What the operations of an augmentation draw for one picture, until it is a variation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from onestream.preprocess.changes import AnyChange
from onestream.preprocess.definition import Definition
from onestream.preprocess.geometry import Boxes, Size
from onestream.preprocess.operations import Color
from onestream.preprocess.plan import Planner
from onestream.preprocess.projection import Corners, Projection, inverse
from onestream.preprocess.variation import Variation, Warp

Matrix = npt.NDArray[np.float64]
_LEAST_DIVISOR = 0.1
"""Of a corner of the canvas, where that of its middle is 1: a tenth of the size there, and far from the horizon."""


_Pair = TypeVar("_Pair", tuple[float, float], tuple[int, int])


def ordered(pair: _Pair) -> _Pair:
    """A range whose low end comes first. Raises ``ValueError``."""
    if pair[0] > pair[1]:
        raise ValueError(f"must be [low, high], got {list(pair)}")
    return pair


Use = Literal["classes", "boxes", "masks", "lines", "clips"]
"""Pictures with a class, with boxes, and with masks, lines of text, and clips of videos."""
Share = Annotated[float, Field(ge=0, le=1)]
"""Of an area, of a side, or a probability."""
Range = Annotated[tuple[float, float], AfterValidator(ordered)]
"""Lowest and highest value, both possible."""
PositiveRange = Annotated[tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]], AfterValidator(ordered)]
_PartOfArea = Annotated[float, Field(gt=0, le=1)]
AreaRange = Annotated[tuple[_PartOfArea, _PartOfArea], AfterValidator(ordered)]
"""Shares of an area."""


@dataclass(slots=True)
class Draft:
    """One picture's variation while it is drawn.

    The operations see a picture, of ``size_hw`` pixels, that is the source at first and changes with each that moves
    pixels. ``color`` is the definition's, ``canvas_hw`` the size of its output. ``objects`` are what is to be seen, in
    pixels of the source, of which a random box keeps ``min_visible`` of one.
    """

    source_hw: Size
    canvas_hw: Size
    color: Color
    random: np.random.Generator
    objects: Boxes | None
    min_visible: float
    size_hw: Size = (0, 0)
    changes: list[AnyChange] = field(default_factory=list)
    warp: Warp | None = None
    _moves: list[tuple[Matrix, bool]] = field(default_factory=list)
    _fills_canvas: bool = False

    def __post_init__(self) -> None:
        self.size_hw = self.source_hw

    def move(self, to_earlier: Matrix, *, affine: bool = True) -> None:
        """Move points: ``to_earlier`` (3, 3) takes those of the new picture, (x, y, 1), to the present one."""
        self._moves.append((to_earlier, affine))

    def cut(self, to_earlier: Matrix, size_hw: Size) -> None:
        """The same with a new size."""
        self.move(to_earlier)
        self._fills_canvas = self._fills_canvas and size_hw == self.size_hw
        self.size_hw = size_hw

    def fill_canvas(self, to_earlier: Matrix) -> None:
        """The same with the canvas's size, in place of the definition's geometry."""
        self.move(to_earlier)
        self.size_hw, self._fills_canvas = self.canvas_hw, True

    def objects_now(self) -> Boxes | None:
        """The smallest boxes around the objects in the present picture; None where there are none."""
        if self.objects is None or not len(self.objects) or not self._moves:
            return self.objects if self.objects is not None and len(self.objects) else None
        corners = _corners(_combined(self._moves), self.size_hw)
        return None if corners is None else Projection(self.source_hw, self.size_hw, corners).to_canvas(self.objects)

    def variation(self, definition: Definition | None, fill: int | None) -> Variation:
        """What was drawn. The definition's geometry brings the picture to the canvas, where no operation filled it.

        Where the canvas would show the transform's horizon, or come near it, the operations that are not affine are
        left out. Raises ``BadImage`` where the definition cannot be applied.
        """
        moves = list(self._moves)
        if definition is not None and not self._fills_canvas:
            placed = Planner(definition).mapping(self.size_hw)
            (down, across), (top, left) = placed.scale, placed.offset
            moves.append((np.array([[1 / across, 0, -left / across], [0, 1 / down, -top / down], [0, 0, 1]]), True))
        canvas_hw = self.size_hw if definition is None else self.canvas_hw
        corners = _corners(_combined(moves), canvas_hw)
        if corners is None:
            corners = _corners(_combined([move for move in moves if move[1]]), canvas_hw)
            assert corners is not None
        return Variation(corners=corners, fill=fill, changes=tuple(self.changes), warp=self.warp)


def about_middle(linear: Matrix, size_hw: Size, moved: tuple[float, float] = (0.0, 0.0)) -> Matrix:
    """A transform to the earlier picture's points, from the linear map (2, 2) of an earlier point about the middle.

    ``moved`` is what x and y are moved by afterwards, in pixels.
    """
    (x, y), (across, down) = (size_hw[1] / 2, size_hw[0] / 2), moved
    (a, b), (c, d) = linear.tolist()
    forward = np.array([[a, b, x + across - a * x - b * y], [c, d, y + down - c * x - d * y], [0, 0, 1]])
    return inverse(forward)


def _combined(moves: list[tuple[Matrix, bool]]) -> Matrix:
    """From the last picture's points to the source's."""
    combined = np.eye(3)
    for matrix, _ in moves:
        combined = combined @ matrix
    return combined


def _corners(matrix: Matrix, size_hw: Size) -> Corners | None:
    """Where the corners of a picture come from; None where one of them lies beyond the horizon or near it."""
    height, width = size_hw
    (a, b, c), (d, e, f), (g, h, i) = matrix.tolist()
    corners = []
    for x, y in ((0, 0), (width, 0), (width, height), (0, height)):
        divisor = g * x + h * y + i
        if divisor < _LEAST_DIVISOR * (g * width / 2 + h * height / 2 + i):
            return None
        corners.append(((a * x + b * y + c) / divisor, (d * x + e * y + f) / divisor))
    one, two, three, four = corners
    return one, two, three, four


class Operation(BaseModel):
    """Base of all operations: a frozen value. ``probability`` is that of anything being done at all."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    probability: Share = 1.0
    uses: ClassVar[frozenset[Use]] = frozenset({"classes", "boxes", "masks", "lines", "clips"})
    """What it may vary."""
    moves: ClassVar[bool] = False
    """Whether it moves pixels."""
    mixes: ClassVar[bool] = False
    """Whether it makes a canvas of several samples."""

    def happens(self, random: np.random.Generator) -> bool:
        """Whether it happens; where that is certain nothing is drawn."""
        return self.probability == 1 or bool(random.random() < self.probability)


class AugmentationOperation(Operation):
    """Base of the operations that vary a picture: they add to a draft what they draw.

    ``NEEDS`` names what a GPU's backend must be able to do for it (``Backend.varies_on_gpu``).
    """

    NEEDS: ClassVar[tuple[str, ...]] = ("a CPU",)

    @property
    def needs(self) -> tuple[str, ...]:
        """What of it these settings need."""
        return self.NEEDS

    def draw(self, draft: Draft) -> None:
        """Draw, if it happens."""
        if self.happens(draft.random):
            self._draw(draft)

    def _draw(self, draft: Draft) -> None:
        raise NotImplementedError


Axis = Literal["horizontal", "vertical"]
