"""What a network says of a photo, compared with what it says of the reference's pixels: one class for each kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from onestream.measure.parity.report import BoxFigures, Flip, RegionFigures, TextFigures
from onestream.measure.parity.subject import Observation, Outputs
from onestream.preprocess.geometry import Size
from onestream.wire.tensor_names import CLASS_IDS


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What became of one subject's answers, as in ``SubjectReport``."""

    predictions: int = 0
    flips: Sequence[Flip] = ()
    boxes: BoxFigures | None = None
    regions: RegionFigures | None = None
    texts: TextFigures | None = None


class Tally(ABC):
    """Collects the answers of one subject."""

    @abstractmethod
    def add(self, photo: str, form: str, expected: Outputs, got: Outputs) -> None:
        """Compare an answer with the reference's. ``form`` is the served model that gave it, or empty."""

    @abstractmethod
    def verdicts(self) -> Verdicts:
        """Of all that was added."""


class Answers(ABC):
    """How the answers of a kind of pipeline are read and compared.

    ``compares_outputs`` says whether the network's outputs can be compared value by value.
    """

    compares_outputs: ClassVar[bool] = True

    @abstractmethod
    def read(self, outputs: Outputs, picture_hw: Size) -> Outputs:
        """What the pipeline answers, from the network's outputs for a picture of (height, width)."""

    @abstractmethod
    def tally(self) -> Tally:
        """A new one, for one subject."""


@dataclass(frozen=True, slots=True)
class Right:
    """What is made of what the reference shows: the network's outputs, the answer, (height, width) of the picture."""

    outputs: Outputs
    answer: Outputs
    picture_hw: Size


class Answering(Protocol):
    """What makes answers of what subjects show."""

    @property
    def answers(self) -> Answers:
        """How they are read and compared."""
        ...

    def right(self, expected: Observation) -> Right:
        """What the reference's observation, which shows every stage, leads to."""
        ...

    def outputs_for(self, seen: Observation) -> Outputs | None:
        """The outputs that a subject reports, or the network's for what the subject feeds it; None where no network is
        asked.
        """
        ...


class Unread(Answers):
    """Of kinds whose answers are compared as the network's outputs only."""

    def read(self, outputs: Outputs, picture_hw: Size) -> Outputs:  # noqa: ARG002
        """The outputs."""
        return outputs

    def tally(self) -> Tally:
        """See ``Answers.tally``."""
        return _Uncounted()


class TopClass(Answers):
    """The best class, of networks whose output is one row of scores."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = labels

    def read(self, outputs: Outputs, picture_hw: Size) -> Outputs:  # noqa: ARG002
        """The outputs, whose best class is the answer's."""
        return outputs

    def tally(self) -> Tally:
        """See ``Answers.tally``."""
        return _TopClasses(self._labels)


class _Uncounted(Tally):
    def add(self, photo: str, form: str, expected: Outputs, got: Outputs) -> None:
        pass

    def verdicts(self) -> Verdicts:
        return Verdicts()


class _TopClasses(Tally):
    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = labels
        self._predictions = 0
        self._flips: list[Flip] = []

    def add(self, photo: str, form: str, expected: Outputs, got: Outputs) -> None:
        one, other = _top_id(expected), _top_id(got)
        if one is None or other is None:
            return
        self._predictions += 1
        if one != other:
            self._flips.append(Flip(photo=photo, form=form, expected=self._label(one), got=self._label(other)))

    def verdicts(self) -> Verdicts:
        return Verdicts(self._predictions, self._flips)

    def _label(self, class_id: int) -> str:
        return self._labels[class_id] if class_id < len(self._labels) else str(class_id)


def _top_id(answer: Outputs) -> int | None:
    """The best class that an answer names, or of one row of scores; None where it is something else."""
    if CLASS_IDS in answer:
        return int(answer[CLASS_IDS][0, 0])
    if len(answer) != 1:
        return None
    (scores,) = answer.values()
    return int(scores[0].argmax()) if scores.ndim == 2 and scores.shape[1] > 1 else None
