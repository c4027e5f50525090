"""What a network says of a photo, compared with what it says of the reference's pixels, and told as a report does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from onestream.measure.parity.report import BoxFigures, Flip, RegionFigures, TextFigures
from onestream.measure.parity.subject import Observation, Outputs
from onestream.postprocess.average_precision import agreement_ap
from onestream.postprocess.kinds import ParitySection, Postprocess
from onestream.postprocess.same_lines import edit_distance
from onestream.preprocess.geometry import Size
from onestream.wire.comparing import Compared, Found, compare_found
from onestream.wire.kinds import KINDS
from onestream.wire.tensor_names import TEXTS

EQUAL_IOU = 0.99
MOVED_PX = 1.0
NOTHING = "nothing"
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What became of one subject's answers, as in ``SubjectReport``."""

    predictions: int = 0
    flips: Sequence[Flip] = ()
    boxes: BoxFigures | None = None
    regions: RegionFigures | None = None
    texts: TextFigures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """How the answers of a pipeline are read and compared.

    ``section`` of the report tells what became of them. ``postprocess`` makes an answer of the network's outputs; None
    where they are the answer: all of it, or a row of scores for the classes of these ``names``. ``most`` is how many
    boxes of a picture there may be.
    """

    kind: str
    section: ParitySection
    postprocess: Postprocess | None = None
    names: Sequence[str] = ()
    most: int = 0

    @property
    def compares_outputs(self) -> bool:
        """Whether outputs can be compared value by value."""
        return self.section in ("", "classes")

    def read(self, outputs: Outputs, picture_hw: Size) -> Outputs:
        """What the pipeline answers, from the network's outputs for a picture of (height, width)."""
        if self.postprocess is None:
            return outputs
        (answer,) = self.postprocess(dict(outputs), [picture_hw])
        return answer

    def found(self, answer: Outputs, form: str = "") -> Found:
        """What is said by what ``read`` gives, or by the served model ``form``."""
        if form or not self.compares_outputs:
            return Found.of(self.kind, answer)
        found = Found.of(None, answer)
        labels = [self.names[one] if one < len(self.names) else str(one) for one in found.class_ids.tolist()]
        return replace(found, labels=labels)


class Seen(NamedTuple):
    """A compared answer. ``form`` is the served model that gave it, or empty."""

    photo: str
    form: str
    compared: Compared

    def flip(self, expected: str, got: str) -> Flip:
        """Something that is another than the reference's."""
        return Flip(photo=self.photo, form=self.form, expected=expected or NOTHING, got=got or NOTHING)


@dataclass(slots=True)
class Tally:
    """Collects the answers of one subject."""

    answers: Answers
    _seen: list[Seen] = field(default_factory=list)

    def add(self, photo: str, form: str, expected: Outputs, got: Outputs) -> None:
        """Compare an answer with the reference's."""
        if self.answers.section:
            one, other = self.answers.found(expected), self.answers.found(got, form)
            self._seen.append(Seen(photo, form, compare_found(KINDS[self.answers.kind], one, other)))

    def verdicts(self) -> Verdicts:
        """Of all that was added."""
        return _SECTIONS[self.answers.section](self._seen, self.answers) if self._seen else Verdicts()


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


def _classes(seen: Sequence[Seen], answers: Answers) -> Verdicts:  # noqa: ARG001
    read = [one for one in seen if len(one.compared.one) and len(one.compared.other)]
    flips = [
        one.flip(one.compared.one.labels[0], one.compared.other.labels[0]) for one in read if not one.compared.same
    ]
    return Verdicts(len(read), flips)


def _texts(seen: Sequence[Seen], answers: Answers) -> Verdicts:  # noqa: ARG001
    read = [(one.compared.one.labels[0], one.compared.other.labels[0]) for one in seen]
    flips = [one.flip(*texts) for one, texts in zip(seen, read, strict=True) if texts[0] != texts[1]]
    return Verdicts(len(read), flips, texts=_text_figures(read))


def _boxes(seen: Sequence[Seen], answers: Answers) -> Verdicts:
    flips: list[Flip] = []
    for photo in seen:
        found, became = photo.compared, {pair.one: pair.other for pair in photo.compared.became}
        flips += [photo.flip(found.one.text(i), _named(found.other.text, became.get(i))) for i in found.lost]
        flips += [photo.flip(NOTHING, found.other.text(j)) for j in found.added if j not in became.values()]
    compared = [one.compared for one in seen]
    same = [pair for one in compared for pair in one.same]
    ap = agreement_ap([(one.one, one.other) for one in compared], answers.most)
    figures = BoxFigures(
        expected=sum(len(one.one) for one in compared),
        lost=sum(len(one.lost) for one in compared),
        added=sum(len(one.added) for one in compared),
        moved=sum(pair.moved_px > MOVED_PX for pair in same),
        equal=sum(pair.iou >= EQUAL_IOU for pair in same),
        farthest_px=round(max((pair.moved_px for pair in same), default=0.0), 3),
        agreement_ap=None if ap is None else round(ap, _DIGITS),
    )
    return Verdicts(figures.expected, flips, figures)


def _regions(seen: Sequence[Seen], answers: Answers) -> Verdicts:  # noqa: ARG001
    """What is said of a region plays no part in whether it is the same."""
    flips: list[Flip] = []
    read: list[tuple[str, str]] = []
    overlaps: list[float] = []
    expected = lost = added = otherwise = 0
    for photo in seen:
        found = photo.compared
        pairs = [*found.same, *found.became]
        gone = [i for i in found.lost if i not in {pair.one for pair in found.became}]
        new = [j for j in found.added if j not in {pair.other for pair in found.became}]
        expected, lost, added = expected + len(found.one), lost + len(gone), added + len(new)
        otherwise += len(found.became)
        overlaps += [pair.iou for pair in pairs]
        if found.one.said == TEXTS:
            read += [(found.one.labels[pair.one], found.other.labels[pair.other]) for pair in pairs]
        flips += [photo.flip(_region(found.one, pair.one), _region(found.other, pair.other)) for pair in found.became]
        flips += [photo.flip(_region(found.one, i), NOTHING) for i in gone]
        flips += [photo.flip(NOTHING, _region(found.other, j)) for j in new]
    says = any(len(side) and side.said for one in seen for side in (one.compared.one, one.compared.other))
    figures = RegionFigures(
        expected=expected,
        lost=lost,
        added=added,
        mean_iou=round(float(np.mean(overlaps)), _DIGITS) if overlaps else None,
        least_iou=round(min(overlaps), _DIGITS) if overlaps else None,
        otherwise=otherwise if says else None,
    )
    return Verdicts(expected, flips, regions=figures, texts=_text_figures(read))


_SECTIONS: dict[ParitySection, Callable[[Sequence[Seen], Answers], Verdicts]] = {
    "classes": _classes,
    "boxes": _boxes,
    "regions": _regions,
    "texts": _texts,
}


def _named(text: Callable[[int], str], index: int | None) -> str:
    return NOTHING if index is None else text(index)


def _region(found: Found, index: int) -> str:
    """What is said of a region, or where it is."""
    x, y = found.boxes[index][:2] if found.quads is None else found.quads[index][0]
    return (found.labels[index] if found.said else "") or f"region at {x:.0f}, {y:.0f}"


def _text_figures(read: Sequence[tuple[str, str]]) -> TextFigures | None:
    """Of texts that were read twice; None where none was."""
    if not read:
        return None
    return TextFigures(
        lines=len(read),
        equal=sum(one == other for one, other in read),
        edits=sum(edit_distance(one, other) for one, other in read),
        characters=sum(len(one) for one, _ in read),
    )
