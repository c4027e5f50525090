"""A report in one plain paragraph: is it within the tolerances, and where does the rest come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onestream.measure.parity.report import Kind, Report, SubjectReport, stages_of
from onestream.preprocess.definition import PreprocessingStage

_CAUSES: dict[PreprocessingStage, str] = {
    "decode": "another decoder, colour order or a forgotten EXIF orientation",
    "region": "another interpolation, or other places of the pixels' middles",
    "resize": "another filter, or shrinking without the smoothing (antialiasing) that it needs",
    "crop": "another window or border",
    "normalize": "another mean, std or scale",
}


_FRAME_CAUSE = "another matrix or range of colours, or a forgotten rotation"


@dataclass(frozen=True, slots=True)
class Blame:
    """The stage at which a subject's mean difference grows most, and by how many levels; None for another shape.

    ``located`` is False where the stages before it cannot be seen, as those of a server. ``kind`` is the report's,
    ``looks_like`` the subject's.
    """

    stage: PreprocessingStage
    levels: float | None
    located: bool
    kind: Kind = "photo"
    looks_like: str = ""

    @property
    def cause(self) -> str:
        """What usually makes such a difference."""
        if self.looks_like:
            return self.looks_like
        if not self.located:
            return "the stages before it cannot be seen from outside"
        return _FRAME_CAUSE if (self.stage, self.kind) == ("decode", "frame") else _CAUSES[self.stage]


def blame(subject: SubjectReport, kind: Kind = "photo") -> Blame | None:
    """Where a subject's difference comes from; None where it has none."""
    stages = stages_of(kind)
    other = [stage for stage in stages if stage in subject.other_shape]
    if other:
        return Blame(other[0], None, _is_located(other[0], subject, stages), kind)
    before, grown = 0.0, {}
    for stage in stages:
        if stage in subject.stages:
            mean = subject.stages[stage].mean
            grown[stage], before = mean - before, mean
    if not grown or not any(figures.max for figures in subject.stages.values()):
        return None
    worst = max(grown, key=lambda stage: grown[stage])
    return Blame(worst, grown[worst], _is_located(worst, subject, stages), kind, subject.looks_like)


def _within_bounds(subject: SubjectReport) -> bool:
    """Whether bounds hold for code of others, and it keeps within them."""
    complete = bool(subject.allowed) and not subject.other_shape and not subject.refused
    return complete and all(figures.within for figures in subject.stages.values())


def _is_located(stage: PreprocessingStage, subject: SubjectReport, stages: Sequence[PreprocessingStage]) -> bool:
    before = stages[: stages.index(stage)]
    return all(earlier in subject.stages or earlier in subject.other_shape for earlier in before)


def explain(report: Report) -> str:
    """What the table says, for someone who reads one for the first time."""
    if not report.definition_digest:
        return _explain_whole(report)
    sentences = [
        f"Everything is compared with the reference, which is the definition run literally by Pillow and NumPy, on "
        f"{_count(report.compared, report.kind)}."
    ]
    sentences += [f"Problem: {problem}." for problem in report.problems]
    judged = [subject for subject in report.subjects if subject.judged]
    others = [subject for subject in report.subjects if not subject.judged]
    sentences.append(
        _verdict(judged, report.kind) if judged else "Nothing is judged: no backend but the reference can run here."
    )
    equal = [subject.name for subject in others if subject.photos and blame(subject, report.kind) is None]
    if equal:
        sentences.append(f"{_listed(equal)} {'equals' if len(equal) == 1 else 'equal'} it to the last bit.")
    rounding = [subject for subject in others if subject.name not in equal and _within_bounds(subject)]
    if rounding:
        highest = max(figures.max for subject in rounding for figures in subject.stages.values())
        sentences.append(
            f"{_listed([subject.name for subject in rounding])} {'differs' if len(rounding) == 1 else 'differ'} by no "
            f"more than another conversion of the same colours rounds or interpolates, at most {highest:.4g} levels."
        )
    by_cause: dict[tuple[PreprocessingStage, str], list[str]] = {}
    for subject in others:
        found = None if subject in rounding else blame(subject, report.kind)
        if found is not None:
            by_cause.setdefault((found.stage, found.cause), []).append(_skew(subject, found))
    for (stage, cause), guilty in by_cause.items():
        sentences.append(f"At {stage}, {_listed(guilty)}: {cause}.")
    if by_cause:
        sentences += _cost([subject for subject in others if subject not in rounding], report.kind)
    return " ".join(sentences)


def _explain_whole(report: Report) -> str:
    """The same of a cascade from picture to answer: every way has found the regions by itself."""
    sentences = [
        "From picture to answer, every subject is compared with the cascade that has the reference's pixels, on "
        f"{_count(report.compared, 'photo')}."
    ]
    sentences += [f"Problem: {problem}." for problem in report.problems]
    for subject in report.subjects:
        if subject.refused:
            count = _count(len(subject.refused), "photo")
            sentences.append(f"{subject.name} refuses {count} that the reference takes.")
        if subject.regions is not None:
            sentences.append(f"{subject.name}: {_Regions.of([subject])}.")
    return " ".join(sentences)


def _cost(skewed: list[SubjectReport], kind: Kind) -> list[str]:
    """What a skew does to the network's answers, in the user's unit; nothing where no network was asked."""
    silently = "without an error or a line in a log"
    if any(subject.regions is not None for subject in skewed):
        regions = _Regions.of(skewed)
        if regions.lost or regions.added or regions.otherwise:
            return [f"By that skew, {regions}, {silently}."]
        return [f"Here {regions}; regions near a threshold can be."]
    if any(subject.boxes is not None for subject in skewed):
        boxes = _Boxes.of(skewed)
        if boxes.lost or boxes.added or boxes.moved:
            return [f"By that skew, {boxes}, {silently}."]
        return [f"Here {boxes}; objects near the score threshold can be."]
    flips, predictions = sum(len(one.flips) for one in skewed), sum(one.predictions for one in skewed)
    if not predictions:
        return []
    if flips:
        return [f"That skew flips {flips} of {_count(predictions, 'prediction')}, {silently}."]
    return [f"It flips none of {_count(predictions, 'prediction')} here; on {kind}s near a decision it can."]


@dataclass(frozen=True, slots=True)
class _Regions:
    """Sums over subjects of ``RegionFigures`` and ``TextFigures``."""

    expected: int
    lost: int
    added: int
    otherwise: int | None
    edits: int
    characters: int

    @classmethod
    def of(cls, subjects: list[SubjectReport]) -> _Regions:
        found = [subject.regions for subject in subjects if subject.regions is not None]
        texts = [subject.texts for subject in subjects if subject.texts is not None]
        return cls(
            sum(one.expected for one in found),
            sum(one.lost for one in found),
            sum(one.added for one in found),
            sum(said) if (said := [one.otherwise for one in found if one.otherwise is not None]) else None,
            sum(one.edits for one in texts),
            sum(one.characters for one in texts),
        )

    def __str__(self) -> str:
        """Such as *of 18 regions 2 are lost, none added and 3 answered otherwise (4 of 120 characters)*."""
        lost = f"of {_count(self.expected, 'region')} {self.lost or 'none'} {'are' if self.lost > 1 else 'is'} lost"
        added = f"{self.added or 'none'} added"
        if self.otherwise is None:
            return f"{lost} and {added}"
        edits = f" ({self.edits} of {self.characters} characters)" if self.edits else ""
        return f"{lost}, {added} and {self.otherwise or 'none'} answered otherwise{edits}"


@dataclass(frozen=True, slots=True)
class _Boxes:
    """Sums over subjects of ``BoxFigures``."""

    expected: int
    lost: int
    added: int
    moved: int
    farthest_px: float

    @classmethod
    def of(cls, subjects: list[SubjectReport]) -> _Boxes:
        found = [subject.boxes for subject in subjects if subject.boxes is not None]
        return cls(
            sum(one.expected for one in found),
            sum(one.lost for one in found),
            sum(one.added for one in found),
            sum(one.moved for one in found),
            max((one.farthest_px for one in found), default=0.0),
        )

    def __str__(self) -> str:
        """Such as *of 18 boxes 2 are lost, none added and 3 moved by more than a pixel (at most 4.2)*."""
        farthest = f" (at most {self.farthest_px:.1f})" if self.moved else ""
        return (
            f"of {self.expected} box{'' if self.expected == 1 else 'es'} {self.lost or 'none'} "
            f"{'are' if self.lost > 1 else 'is'} lost, {self.added or 'none'} added and {self.moved or 'none'} moved "
            f"by more than a pixel{farthest}"
        )


def _verdict(judged: list[SubjectReport], kind: Kind) -> str:
    outside = [subject for subject in judged if not subject.within]
    consequence = _consequence(judged)
    if not outside:
        highest = max((figures.max for subject in judged for figures in subject.stages.values()), default=0.0)
        names = [subject.name for subject in judged]
        verb = "stays" if len(names) == 1 else "stay"
        within = f"at most {highest:g} of 255 levels" if highest else "no difference at all"
        return f"{_listed(names)} {verb} within the tolerances, {within}{consequence}."
    told = []
    for subject in outside:
        found = blame(subject, kind)
        if subject.refused:
            told.append(f"{subject.name} refuses {_count(len(subject.refused), kind)} that the reference takes")
        if found is not None:
            told.append(f"{_skew(subject, found)} at {found.stage} ({found.cause})")
    return f"Outside the tolerances: {'; '.join(told)}{consequence}."


def _consequence(judged: list[SubjectReport]) -> str:
    if any(subject.boxes is not None for subject in judged):
        return f"; {_Boxes.of(judged)}"
    if any(subject.regions is not None for subject in judged):
        return f"; {_Regions.of(judged)}"
    flips = sum(len(subject.flips) for subject in judged)
    predictions = sum(subject.predictions for subject in judged)
    return f"; {flips or 'none'} of {_count(predictions, 'prediction')} {_flip(flips)}" if predictions else ""


def _skew(subject: SubjectReport, found: Blame) -> str:
    if found.levels is None:
        return f"{subject.name} gives another size"
    highest = max(figures.max for figures in subject.stages.values())
    return f"{subject.name} departs by {found.levels:.2f} levels on average (at most {highest:.4g})"


def _flip(number: int) -> str:
    return "flips" if number <= 1 else "flip"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
