"""What binds the steps of a transform for training: their order, the levels that they fill with, and what they state.

Here all geometry comes first and is sampled once, the definition's after the augmentation's own; levels change last, on
the canvas. A transform whose steps come in another order is imported where that makes no difference to what is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from onestream.preprocess.errors import CannotImport
from onestream.preprocess.geometry import Size
from onestream.preprocess.interop.common import filter_named
from onestream.preprocess.interop.torchvision_transforms import Chain
from onestream.preprocess.operations import Filter
from onestream.preprocess.training.augmentation import Augmentation

_SAMPLED_ONCE = (
    "All geometry is sampled once, by the definition's filter where it is a box of the picture and by Keys's cubic "
    "otherwise; torchvision samples in each step, by that step's interpolation."
)
_BEHIND_THE_CROP = (
    "Where a later step moves the border of {crop} into sight there is the picture itself; torchvision, which has cut "
    "it off, shows its fill."
)
_LEVELS_LAST = "{name} comes after {levels}. Here levels change last, those of the fill too."
_ON_TENSORS = (
    "After {since} torchvision works on tensors, whose levels differ by one and more from those of PIL images, which "
    "are these, but for boxes, which are resized by the definition's arithmetic. What is drawn is the same."
)


class TrainingOrder:
    """The operations so far, in their order, and the part of a definition that the transform states.

    ``canvas`` is the step that fills the canvas, and its (height, width); ``cut_to`` the size to which the last crop
    cuts. All methods raise ``CannotImport``.
    """

    def __init__(self) -> None:
        self.fixed = Chain()
        self.operations: list[dict[str, Any]] = []
        self.notes: dict[str, None] = {}
        self.canvas: tuple[str, Size] | None = None
        self.cut_to: Size | None = None
        self.filter: Filter | None = None
        self._fills: dict[int, str] = {}
        self._levels_by: str | None = None
        self._marks_by: str | None = None

    def augmentation(self) -> Augmentation:
        """The augmentation of the steps."""
        if not self.operations:
            raise CannotImport("it draws nothing: without --augmentation it is imported as a definition")
        if len(self._fills) > 1:
            seen = ", ".join(f"{level} ({name})" for level, name in self._fills.items())
            raise CannotImport(f"steps fill with different levels: {seen}; a chain has one fill. Give them the same")
        return Augmentation(self.operations, fill=next(iter(self._fills), None))

    def append(self, name: str, operation: dict[str, Any]) -> None:
        """An operation that does the same wherever it comes."""
        try:
            Augmentation([operation])
        except ValidationError as error:
            first = error.errors()[0]
            field = [part for part in first["loc"] if isinstance(part, str)][-1]
            raise CannotImport(f"{name}: {field} is {first['input']!r}: {first['msg']}") from None
        self.operations.append(operation)

    def change(self, name: str, operation: dict[str, Any]) -> None:
        """A change of levels."""
        if self.fixed.normalizes:
            raise CannotImport(f"{name} comes after Normalize, and so knows no levels. Put it before Normalize")
        self._note_tensors()
        self.append(name, operation)
        self._levels_by = self._levels_by or name

    def mark(self, name: str, operation: dict[str, Any]) -> None:
        """A change of levels that leaves marks at places: rectangles, or the blocks of JPEG."""
        self.append(name, operation)
        self._levels_by, self._marks_by = self._levels_by or name, self._marks_by or name

    def move(self, step: Any, name: str, operation: dict[str, Any]) -> None:
        """Geometry that keeps the picture's size."""
        if getattr(step, "center", None) is not None:
            raise CannotImport(f"{name} has center={step.center}; exact is the middle, without center")
        self._before_definition(name)
        if self._marks_by is not None:
            raise CannotImport(
                f"{name} comes after {self._marks_by} and moves what that did; here levels change last. "
                f"Put {name} first"
            )
        if self._levels_by is not None:
            self.note(_LEVELS_LAST.format(name=name, levels=self._levels_by))
        if self.canvas is not None:
            self.note(_BEHIND_THE_CROP.format(crop=self.canvas[0]))
        self.note(_SAMPLED_ONCE)
        self._note_tensors()
        self.fill(name, step.fill)
        self.append(name, operation)

    def move_and_change(self, step: Any, name: str, operation: dict[str, Any]) -> None:
        """A policy, which does either."""
        if self.fixed.normalizes:
            raise CannotImport(f"{name} comes after Normalize, and so knows no levels. Put it before Normalize")
        self.move(step, name, operation)
        self._levels_by = self._levels_by or name

    def cut(self, name: str, probability: float) -> None:
        """Before geometry that changes the picture's size."""
        if probability != 1:
            raise CannotImport(f"{name} happens with a probability of {probability:g}; exact is that it always happens")
        self._before_definition(name)
        self._before_levels(name)

    def fill_canvas(self, step: Any, name: str, size: Size, operation: dict[str, Any]) -> None:
        """Geometry that resizes the picture to the network's input."""
        if self.canvas is not None:
            raise CannotImport(f"{name} comes after {self.canvas[0]}; one of them fills the canvas. Leave one out")
        if self.fixed.tensor_since is not None and not getattr(step, "antialias", True):
            raise CannotImport(f"{name} has antialias={step.antialias} and works on tensors. Exact is antialias=True")
        if isinstance(step.interpolation, tuple | list):
            raise CannotImport(
                f"interpolation of {name} is drawn for each picture; a definition resizes by one filter. The nearest "
                "exact is interpolation='bicubic'"
            )
        mode = getattr(step.interpolation, "value", step.interpolation)
        # PIL has one kind of nearest.
        self.filter = filter_named("nearest" if mode == "nearest-exact" else mode, where=f"the interpolation of {name}")
        self._note_tensors()
        self.canvas = name, size
        self.append(name, operation)

    def state(self, step: Any, name: str, probability: float) -> None:
        """A step that draws nothing: a part of the definition."""
        if probability != 1:
            raise CannotImport(f"{name} happens with a probability of {probability:g}; exact is that it always happens")
        if name in ("Resize", "CenterCrop"):
            self._before_levels(name)
            if self.canvas is not None:
                raise CannotImport(f"{name} comes after {self.canvas[0]}, which fills the canvas. Leave {name} out")
        self.fixed.add(step)

    def fill(self, name: str, fill: Any) -> None:
        """What is shown beyond the picture, as one level."""
        if isinstance(fill, Mapping):
            raise CannotImport(f"fill of {name} says it by type: {dict(fill)}; exact is one level for pictures")
        levels = self.fixed.levels_of(0 if fill is None else fill, where=f"fill of {name}")
        if len(set(levels)) != 1 or not levels[0].is_integer():
            shown = ", ".join(f"{level:g}" for level in levels)
            raise CannotImport(f"{name} fills with the levels {shown}; exact is one whole level for all channels")
        self._fills.setdefault(int(levels[0]), name)

    def note(self, text: str) -> None:
        """Something to know, said once."""
        self.notes[text] = None

    def _note_tensors(self) -> None:
        if self.fixed.tensor_since is not None:
            self.note(_ON_TENSORS.format(since=self.fixed.tensor_since))

    def _before_definition(self, name: str) -> None:
        if self.fixed.geometry:
            first = type(self.fixed.geometry[0]).__name__
            raise CannotImport(
                f"{name} comes after {first}; here pictures are moved in their own pixels, and the definition's "
                f"geometry follows. The nearest is {name} before {first}, or RandomResizedCrop in place of {first}"
            )

    def _before_levels(self, name: str) -> None:
        if self._levels_by is not None:
            raise CannotImport(
                f"{name} comes after {self._levels_by}; here levels change last, on the canvas. The nearest exact is "
                f"{self._levels_by} after {name}"
            )
