"""Measures subjects against the reference, photo by photo or frame by frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic

import numpy as np

from onestream.measure.parity.network import Network, logits, top_id
from onestream.measure.parity.report import Flip, LogitFigures, SubjectReport
from onestream.measure.parity.subject import Item, Observation, Outputs, Refused, Subject
from onestream.preprocess import Definition
from onestream.preprocess.tolerances import Bounds, Comparison, Stage, judge
from onestream.serving.building.figures import Figures


class Bench(Generic[Item]):
    """Compares subjects with the reference, and their effect on a network where there is one."""

    def __init__(self, definition: Definition, reference: Subject[Item], network: Network | None) -> None:
        self._definition, self._reference, self._network = definition, reference, network

    def measure(
        self, subjects: Sequence[Subject[Item]], items: Sequence[Item], *, on_item: Callable[[], None] = lambda: None
    ) -> tuple[list[SubjectReport], dict[str, str]]:
        """A report for each subject, and the photos or frames that the reference refuses with the reason."""
        tallies = [_Tally(subject, self._definition, self._network) for subject in subjects]
        bad: dict[str, str] = {}
        for item in items:
            try:
                expected = self._reference.observe(item)
            except Refused as error:
                bad[item.name] = str(error)
            else:
                outputs = _outputs_for(self._network, expected)
                for tally in tallies:
                    tally.add(item, expected, outputs)
            on_item()
        return [tally.report() for tally in tallies], bad


def _outputs_for(network: Network | None, seen: Observation) -> Outputs | None:
    """The outputs that the subject reports, or the network's for its pixels."""
    pixels = seen.network_pixels
    if seen.outputs is not None or network is None or pixels is None:
        return seen.outputs
    return network.outputs(pixels)


class _Tally(Generic[Item]):
    """Collects one subject's differences."""

    def __init__(self, subject: Subject[Item], definition: Definition, network: Network | None) -> None:
        self._subject, self._definition, self._network = subject, definition, network
        self._comparisons: dict[Stage, list[Comparison]] = {}
        self._other_shape: dict[Stage, int] = {}
        self._refused: dict[str, str] = {}
        self._logits: list[LogitFigures] = []
        self._flips: list[Flip] = []
        self._forms: list[str] = []
        self._photos = self._predictions = 0

    def add(self, item: Item, expected: Observation, outputs: Outputs | None) -> None:
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
        if outputs is not None:
            self._add_answers(item, seen, outputs, runs=same_shape)

    def _add_answers(self, item: Item, seen: Observation, outputs: Outputs, *, runs: bool) -> None:
        """``runs`` says whether the pixels have the shape that the network takes."""
        assert self._network is not None
        tops = dict(seen.top_ids)
        own = _outputs_for(self._network, seen) if runs else seen.outputs
        if own is not None and logits(own).shape == logits(outputs).shape:
            difference = np.abs(logits(own) - logits(outputs))
            self._logits.append(
                LogitFigures(
                    max=float(difference.max()),
                    mean=float(difference.mean()),
                    percentile_99_9=float(np.percentile(difference, 99.9)),
                )
            )
            top = top_id(own)
            # A server's forms name the best class themselves.
            if top is not None and not tops:
                tops[""] = top
        expected = top_id(outputs)
        if expected is None:
            return
        for form, got in tops.items():
            self._predictions += 1
            if form and form not in self._forms:
                self._forms.append(form)
            if got != expected:
                label = self._network.label
                self._flips.append(Flip(photo=item.name, form=form, expected=label(expected), got=label(got)))

    def _bounds(self, stage: Stage) -> Bounds | None:
        return self._subject.allowed(stage, "plain")

    def report(self) -> SubjectReport:
        figures = None
        if self._logits:
            figures = LogitFigures(
                max=round(max(one.max for one in self._logits), 6),
                mean=round(float(np.mean([one.mean for one in self._logits])), 6),
                percentile_99_9=round(max(one.percentile_99_9 for one in self._logits), 6),
            )
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
            predictions=self._predictions,
            forms=self._forms,
            flips=self._flips,
        )
