"""Detections compared with the reference's: boxes lost, added and moved, and how well both agree."""

from __future__ import annotations

from collections.abc import Sequence

from onestream.measure.parity.answers import Answers, Tally, Verdicts
from onestream.measure.parity.report import BoxFigures, Flip
from onestream.measure.parity.subject import Outputs
from onestream.postprocess.average_precision import agreement_ap
from onestream.postprocess.kinds import Detection, open_postprocess
from onestream.postprocess.same_objects import Found, compare
from onestream.preprocess import Definition
from onestream.preprocess.geometry import Size

EQUAL_IOU = 0.99
MOVED_PX = 1.0
NOTHING = "nothing"


class Objects(Answers):
    """Boxes in pixels of the picture, made by the pipeline's own postprocessing."""

    # Candidates are in the order of their scores: one that changes its place would be compared with another.
    compares_outputs = False

    def __init__(self, options: Detection, definition: Definition, labels: Sequence[str] | None) -> None:
        self._postprocess = open_postprocess(options, definition, labels=labels)
        self._most = options.max_detections

    def read(self, outputs: Outputs, picture_hw: Size) -> Outputs:
        """See ``Answers.read``."""
        (answer,) = self._postprocess(dict(outputs), [picture_hw])
        return answer

    def tally(self) -> Tally:
        """See ``Answers.tally``."""
        return _Boxes(self._most)


class _Boxes(Tally):
    def __init__(self, most: int) -> None:
        self._most = most
        self._answers: list[tuple[Found, Found]] = []
        self._flips: list[Flip] = []
        self._lost = self._added = self._moved = self._equal = 0
        self._farthest_px = 0.0

    def add(self, photo: str, form: str, expected: Outputs, got: Outputs) -> None:
        one, other = Found.of(expected), Found.of(got)
        self._answers.append((one, other))
        compared = compare(one, other)
        self._lost += len(compared.only_one)
        self._added += len(compared.only_other)
        self._moved += sum(pair.moved_px > MOVED_PX for pair in compared.same)
        self._equal += sum(pair.iou >= EQUAL_IOU for pair in compared.same)
        self._farthest_px = max([self._farthest_px, *(pair.moved_px for pair in compared.same)])
        became = compared.became
        changes = [(one.text(i), other.text(became[i]) if i in became else NOTHING) for i in compared.only_one]
        changes += [(NOTHING, other.text(j)) for j in compared.only_other if j not in became.values()]
        self._flips += [Flip(photo=photo, form=form, expected=before, got=after) for before, after in changes]

    def verdicts(self) -> Verdicts:
        if not self._answers:
            return Verdicts()
        ap = agreement_ap(self._answers, self._most)
        figures = BoxFigures(
            expected=sum(len(one) for one, _ in self._answers),
            lost=self._lost,
            added=self._added,
            moved=self._moved,
            equal=self._equal,
            farthest_px=round(self._farthest_px, 3),
            agreement_ap=None if ap is None else round(ap, 6),
        )
        return Verdicts(figures.expected, self._flips, figures)
