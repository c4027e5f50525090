"""Regions compared with the reference's: where they are, and what is said of them: text, class or direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onestream.measure.parity.answers import Answers, Tally, Verdicts
from onestream.measure.parity.boxes import NOTHING
from onestream.measure.parity.report import Flip, RegionFigures, TextFigures
from onestream.measure.parity.subject import Outputs
from onestream.postprocess.kinds import Text, TextLines, open_postprocess
from onestream.postprocess.same_lines import edit_distance, quad_iou
from onestream.postprocess.same_objects import best_pairs
from onestream.preprocess import Definition
from onestream.preprocess.geometry import Size, quads_of
from onestream.wire.tensor_names import BOXES, DEGREES, LABELS, QUADS, TEXTS

_DIGITS = 6


class Lines(Answers):
    """Where text is, in pixels of the picture, by the pipeline's own postprocessing."""

    # A probability of text: far more values than lines, of which those far from the threshold decide nothing.
    compares_outputs = False

    def __init__(self, options: TextLines, definition: Definition) -> None:
        self._postprocess = open_postprocess(options, definition)

    def read(self, outputs: Outputs, picture_hw: Size) -> Outputs:
        """See ``Answers.read``."""
        (answer,) = self._postprocess(dict(outputs), [picture_hw])
        return answer

    def tally(self) -> Tally:
        """See ``Answers.tally``."""
        return RegionTally()


class Texts(Answers):
    """The text of one line, by the pipeline's own postprocessing."""

    # A class in place of another is as far away as their places in the list of characters.
    compares_outputs = False

    def __init__(self, options: Text, definition: Definition, characters: Sequence[str]) -> None:
        self._postprocess = open_postprocess(options, definition, labels=characters)

    def read(self, outputs: Outputs, picture_hw: Size) -> Outputs:
        """See ``Answers.read``."""
        (answer,) = self._postprocess(dict(outputs), [picture_hw])
        return answer

    def tally(self) -> Tally:
        """See ``Answers.tally``."""
        return _TextTally()


class RegionTally(Tally):
    """Compares regions by their places, and what is said of the same ones."""

    def __init__(self) -> None:
        self._says = False
        self._pictures = self._expected = self._lost = self._added = self._otherwise = 0
        self._overlaps: list[float] = []
        self._flips: list[Flip] = []
        self._texts = _TextCount()

    def add(self, photo: str, form: str, expected: Outputs, got: Outputs) -> None:
        """See ``Tally.add``."""
        one, other = _Regions.of(expected), _Regions.of(got)
        overlap = quad_iou(one.quads, other.quads)
        pairs = best_pairs(overlap)
        lost = sorted(set(range(len(one.quads))) - {i for i, _ in pairs})
        added = sorted(set(range(len(other.quads))) - {j for _, j in pairs})
        otherwise = [(i, j) for i, j in pairs if one.said[i] != other.said[j]]
        self._says |= any(one.said) or any(other.said)
        self._pictures += 1
        self._expected += len(one.quads)
        self._lost += len(lost)
        self._added += len(added)
        self._otherwise += len(otherwise)
        self._overlaps += [float(overlap[i, j]) for i, j in pairs]
        if TEXTS in expected:
            for i, j in pairs:
                self._texts.add(one.said[i], other.said[j])
        changes = [(one.name(i), other.name(j)) for i, j in otherwise]
        changes += [(one.name(i), NOTHING) for i in lost]
        changes += [(NOTHING, other.name(j)) for j in added]
        self._flips += [Flip(photo=photo, form=form, expected=before, got=after) for before, after in changes]

    def verdicts(self) -> Verdicts:
        """See ``Tally.verdicts``."""
        if not self._pictures:
            return Verdicts()
        figures = RegionFigures(
            expected=self._expected,
            lost=self._lost,
            added=self._added,
            mean_iou=round(float(np.mean(self._overlaps)), _DIGITS) if self._overlaps else None,
            least_iou=round(min(self._overlaps), _DIGITS) if self._overlaps else None,
            otherwise=self._otherwise if self._says else None,
        )
        return Verdicts(self._expected, self._flips, regions=figures, texts=self._texts.figures())


class _TextTally(Tally):
    def __init__(self) -> None:
        self._texts = _TextCount()
        self._flips: list[Flip] = []

    def add(self, photo: str, form: str, expected: Outputs, got: Outputs) -> None:
        one, other = (_text(answer[TEXTS][0, 0]) for answer in (expected, got))
        self._texts.add(one, other)
        if one != other:
            self._flips.append(Flip(photo=photo, form=form, expected=one or NOTHING, got=other or NOTHING))

    def verdicts(self) -> Verdicts:
        figures = self._texts.figures()
        return Verdicts(figures.lines if figures else 0, self._flips, texts=figures)


class _TextCount:
    """Counts what was read."""

    def __init__(self) -> None:
        self._lines = self._equal = self._edits = self._characters = 0

    def add(self, expected: str, got: str) -> None:
        self._lines += 1
        self._characters += len(expected)
        self._equal += expected == got
        self._edits += edit_distance(expected, got)

    def figures(self) -> TextFigures | None:
        """None where no line was read twice."""
        if not self._lines:
            return None
        return TextFigures(lines=self._lines, equal=self._equal, edits=self._edits, characters=self._characters)


@dataclass(frozen=True, slots=True)
class _Regions:
    """The regions of one picture: corners, x y in its pixels, and what is said of each; empty where nothing is."""

    quads: list[npt.NDArray[np.float64]]
    said: list[str]

    @classmethod
    def of(cls, answer: Outputs) -> _Regions:
        """From an answer with a batch of 1."""
        quads = answer[QUADS][0] if QUADS in answer else quads_of(answer[BOXES][0])
        said = [""] * len(quads)
        if TEXTS in answer or LABELS in answer:
            values = answer[TEXTS if TEXTS in answer else LABELS][0]
            said = [_text(best) for best in (values if values.ndim == 1 else values[:, 0])]
        elif DEGREES in answer:
            said = [f"{degrees}°" for degrees in answer[DEGREES][0]]
        return cls([np.asarray(quad, np.float64) for quad in quads], said)

    def name(self, index: int) -> str:
        """What is said of a region, or where it is."""
        x, y = self.quads[index][0]
        return self.said[index] or f"region at {x:.0f}, {y:.0f}"


def _text(encoded: bytes) -> str:
    return encoded.decode(errors="replace")
