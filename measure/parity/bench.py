"""Measures subjects against the reference: photo by photo, frame by frame, region by region."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic

import numpy as np
import numpy.typing as npt

from onestream.measure.parity.answers import Answering, Right, Tally, Verdicts
from onestream.measure.parity.network import logits
from onestream.measure.parity.report import LogitFigures, PictureFigures, SubjectReport
from onestream.measure.parity.subject import Given, Item, Observation, Pixels, Refused, Subject
from onestream.preprocess import Definition
from onestream.preprocess.backends.base import Sample, network_layout
from onestream.preprocess.definition import PreprocessingStage
from onestream.preprocess.tolerances import Bounds, Comparison, judge
from onestream.serving.built.certificate import Figures

_CLEAR = 0.25
"""The part of a difference that may be left for a likeness to be named; another filter leaves some."""

_ORDERS = {"": 1, "channels in reverse order": -1}
_VALUES = {
    "pixels / 255 in place of the definition's mean, std and scale": (255, 0),
    "pixels from 0 to 255 in place of the definition's mean, std and scale": (1, 0),
    "pixels from -1 to 1 in place of the definition's mean, std and scale": (127.5, 1),
}


class Likeness:
    """Compares a subject's inputs with what usual mistakes would make of the reference's pixels."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._differences: dict[str, float] = {}

    def add(self, pixels: Pixels, made: Sample) -> None:
        """``pixels`` are the reference's, ``made`` is the subject's input of the same shape as the reference's."""
        for name, sample in self._samples(pixels).items():
            difference = float(np.abs(made.astype(np.float64) - sample).mean())
            self._differences[name] = self._differences.get(name, 0.0) + difference

    def text(self) -> str:
        """The mistake that explains most of the difference; empty where none does."""
        if not self._differences:
            return ""
        best = min(self._differences, key=lambda name: self._differences[name])
        return best if self._differences[best] < _CLEAR * self._differences[""] else ""

    def _samples(self, pixels: Pixels) -> dict[str, npt.NDArray[np.float64]]:
        found = {}
        for order, step in _ORDERS.items():
            if step == -1 and pixels.shape[2] == 1:
                continue
            ordered = np.ascontiguousarray(pixels[:, :, ::step])
            found[order] = network_layout(self._definition, ordered).astype(np.float64)
            if self._definition.normalize is None:
                continue
            moved = ordered.transpose(2, 0, 1) if self._definition.network_input.layout == "NCHW" else ordered
            for values, (scale, less) in _VALUES.items():
                name = f"{order}, and {values}" if order else values
                found[name] = moved.astype(np.float64) / scale - less
        return found


class Bench(Generic[Item]):
    """Compares subjects with the reference, and their effect on a network where there is one."""

    def __init__(self, definition: Definition, reference: Subject[Item], network: Answering | None) -> None:
        self._definition, self._reference, self._network = definition, reference, network

    def measure(
        self, subjects: Sequence[Subject[Item]], items: Sequence[Item], *, on_item: Callable[[], None] = lambda: None
    ) -> tuple[list[SubjectReport], dict[str, str]]:
        """A report for each subject, and the photos or frames that the reference refuses with the reason."""
        tallies = [_SubjectTally(subject, self._definition, self._network) for subject in subjects]
        bad: dict[str, str] = {}
        for item in items:
            try:
                expected = self._reference.observe(item)
            except Refused as error:
                bad[item.name] = str(error)
            else:
                right = None if self._network is None else self._network.right(expected)
                for tally in tallies:
                    tally.add(item, expected, right)
            on_item()
        return [tally.report() for tally in tallies], bad


class _SubjectTally(Generic[Item]):
    """Collects one subject's differences."""

    def __init__(self, subject: Subject[Item], definition: Definition, network: Answering | None) -> None:
        self._subject, self._definition, self._network = subject, definition, network
        self._comparisons: dict[PreprocessingStage, list[Comparison]] = {}
        self._other_shape: dict[PreprocessingStage, int] = {}
        self._refused: dict[str, str] = {}
        self._logits: list[LogitFigures] = []
        self._likeness = Likeness(definition)
        self._answers: Tally | None = None if network is None else Tally(network.answers)
        self._forms: list[str] = []
        self._pictures: list[PictureFigures] = []
        self._photos = 0

    def add(self, item: Item, expected: Observation, right: Right | None) -> None:
        try:
            seen = self._subject.observe(item)
        except Refused as error:
            self._refused[item.name] = str(error)
            return
        self._photos += 1
        same_shape = True
        for stage, sample in seen.stages.items():
            reference = expected.stages[stage]
            same_shape = sample.shape == reference.shape and sample.dtype == reference.dtype
            if not same_shape:
                self._other_shape[stage] = self._other_shape.get(stage, 0) + 1
                continue
            allowed = self._subject.allowed(stage, item.source)
            comparison = judge(reference, sample, definition=self._definition, stage=stage, allowed=allowed)
            self._comparisons.setdefault(stage, []).append(comparison)
            if stage == "normalize" and "crop" not in seen.stages:
                self._likeness.add(expected.stages["crop"], sample)
        if seen.grid is not None and expected.grid is not None:
            self._pictures.append(_patches_of(item, seen, expected, self._comparisons if same_shape else {}))
        if right is not None:
            self._add_answers(item, seen, right, runs=same_shape)

    def _add_answers(self, item: Item, seen: Observation, right: Right, *, runs: bool) -> None:
        """``runs`` says whether what the subject feeds the network has the shape that this takes."""
        assert self._network is not None
        assert self._answers is not None
        answers = self._network.answers
        own = self._network.outputs_for(seen) if runs else seen.outputs
        if own is not None and answers.compares_outputs and logits(own).shape == logits(right.outputs).shape:
            difference = np.abs(logits(own) - logits(right.outputs))
            self._logits.append(
                LogitFigures(
                    max=float(difference.max()),
                    mean=float(difference.mean()),
                    percentile_99_9=float(np.percentile(difference, 99.9)),
                )
            )
        given = dict(seen.answers)
        # A server's forms answer themselves.
        if own is not None and not given:
            given[""] = answers.read(own, seen.picture_hw or right.picture_hw)
        for form, answer in given.items():
            if form and form not in self._forms:
                self._forms.append(form)
            self._answers.add(item.name, form, right.answer, answer)

    def _bounds(self, stage: PreprocessingStage) -> Bounds | None:
        return self._subject.allowed(stage, "plain")

    def report(self) -> SubjectReport:
        figures = None
        if self._logits:
            figures = LogitFigures(
                max=round(max(one.max for one in self._logits), 6),
                mean=round(float(np.mean([one.mean for one in self._logits])), 6),
                percentile_99_9=round(max(one.percentile_99_9 for one in self._logits), 6),
            )
        verdicts = Verdicts() if self._answers is None else self._answers.verdicts()
        return SubjectReport(
            name=self._subject.name,
            judged=self._subject.judged,
            backend=self._subject.backend,
            device=self._subject.device,
            allowed={stage: bounds.text for stage in self._comparisons if (bounds := self._bounds(stage))},
            photos=self._photos,
            stages={stage: Figures.of(found) for stage, found in self._comparisons.items()},
            other_shape=self._other_shape,
            refused=self._refused,
            logits=figures,
            predictions=verdicts.predictions,
            forms=self._forms,
            flips=list(verdicts.flips),
            boxes=verdicts.boxes,
            regions=verdicts.regions,
            texts=verdicts.texts,
            looks_like=self._likeness.text() or self._subject.cause,
            pictures=self._pictures,
        )


def _patches_of(
    item: Given,
    seen: Observation,
    expected: Observation,
    comparisons: Mapping[PreprocessingStage, Sequence[Comparison]],
) -> PictureFigures:
    """The patches of a picture, whose comparisons are the last of each stage; there are none where the grids differ."""
    rows, right = seen.stages["normalize"], expected.stages["normalize"]
    equal = np.array_equal(rows, right) and (seen.grid, seen.tokens) == (expected.grid, expected.tokens)
    allowed = item.source == "converted" and bool(comparisons) and comparisons["normalize"][-1].within
    assert seen.grid is not None
    assert expected.grid is not None
    return PictureFigures(
        photo=item.name,
        equal=equal,
        within=equal or allowed,
        levels=comparisons["crop"][-1].max if comparisons else None,
        values=float(np.abs(rows.astype(np.float64) - right).max(initial=0)) if comparisons else None,
        grid=seen.grid,
        expected_grid=expected.grid,
        tokens=seen.tokens,
        expected_tokens=expected.tokens,
    )
