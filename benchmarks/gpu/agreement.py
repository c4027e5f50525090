"""Competitors must give the reference's samples and the network's same answers before any of them is timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.competitors import Setting
from benchmarks.gpu.results import Agreement
from benchmarks.photos import Size
from onestream.measure.agreement import Disagreement
from onestream.preprocess import BadImage, Definition, Limits, compile
from onestream.preprocess.backends.base import Sample
from onestream.wire.tensor_names import PIXELS

TIE = 0.03
"""Two classes whose scores, 0 to 1, are closer than this count as a tie, as in ``benchmarks.agreement``."""

Samples = npt.NDArray[np.float32]
Scores = npt.NDArray[np.float64]


class Network:
    """A served network on the CPU, asked with samples that are normalized already. ``None`` where it is not built."""

    def __init__(self, model: Path, definition: Definition) -> None:
        from onestream.serving.engine import OnnxRuntimeEngine

        self._engine = OnnxRuntimeEngine(model, threads=0)
        self._definition = definition

    def scores(self, samples: Samples) -> Scores:
        """Softmax (photos, classes) for samples (photos, channels, height, width)."""
        pixels = np.clip(np.rint(to_levels(samples, self._definition)), 0, 255).astype(np.uint8)
        (logits,) = self._engine.run({PIXELS: np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))}).values()
        powers: Scores = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        scores: Scores = powers / powers.sum(axis=1, keepdims=True)
        return scores


@dataclass(frozen=True, slots=True)
class Expected:
    """The reference's samples of some photos, and the network's scores for them."""

    size: Size
    photos: Sequence[bytes]
    samples: Samples
    scores: Scores | None

    @classmethod
    def of(
        cls, size: Size, photos: Sequence[bytes], definition: Definition, limits: Limits, network: Network | None
    ) -> Expected:
        """Run the reference, and the network where there is one."""
        samples = _stacked(compile(definition, limits=limits).run(photos))
        return cls(size, photos, samples, network.scores(samples) if network else None)

    def flips(self, best: npt.NDArray[Any]) -> int:
        """Photos for which ``best``, class ids (photos,), differ from the reference's by more than a tie."""
        assert self.scores is not None
        rows = np.arange(len(best))
        return int((self.scores.max(axis=1) - self.scores[rows, best] > TIE).sum())


def check_samples(
    setting: Setting, given: Sequence[Sample], expected: Expected, definition: Definition, network: Network | None
) -> Agreement:
    """Compare a competitor's samples with the reference's. Raises ``ValueError`` where they have another shape."""
    samples = _stacked(given)
    if samples.shape != expected.samples.shape:
        raise ValueError(f"{setting.name} gives {samples.shape}, the reference {expected.samples.shape}")
    difference = np.abs(to_levels(samples, definition) - to_levels(expected.samples, definition))
    mean = float(difference.mean())
    flipped = None
    if network is not None and expected.scores is not None:
        flipped = expected.flips(network.scores(samples).argmax(axis=1))
    allowed = f"mean ≤ {setting.mean_levels:g} levels" + (", no other best class" if setting.exact else "")
    return Agreement(
        part="preprocess",
        setting=setting.name,
        size=expected.size,
        photos=len(expected.photos),
        mean_levels=round(mean, 4),
        max_level=round(float(difference.max()), 2),
        flipped=flipped,
        allowed=allowed,
        agrees=mean <= setting.mean_levels and not (setting.exact and flipped),
    )


def check_answers(setting: str, best: npt.NDArray[Any], expected: Expected) -> Agreement:
    """Compare the best classes (photos,) of the fused form with those of the reference and the network on the CPU."""
    flipped = expected.flips(best)
    return Agreement(
        part="fused",
        setting=setting,
        size=expected.size,
        photos=len(expected.photos),
        mean_levels=None,
        max_level=None,
        flipped=flipped,
        allowed="no other best class",
        agrees=flipped == 0,
    )


def refuse(found: Agreement) -> None:
    """Raise ``Disagreement`` where it was not what is allowed."""
    if not found.agrees:
        levels = "" if found.mean_levels is None else f"mean {found.mean_levels:g} levels from the reference, "
        raise Disagreement(
            f"disagrees at {found.size}: {levels}{found.flipped} of {found.photos} photos with another best class; "
            f"allowed: {found.allowed}"
        )


def to_levels(samples: Samples, definition: Definition) -> Samples:
    """Normalized samples (photos, channels, height, width) as 8-bit levels, not rounded."""
    normalize = definition.normalize
    if normalize is None:
        return samples
    mean, std = (
        (np.asarray(values, np.float32) * np.float32(normalize.scale))[:, None, None]
        for values in (normalize.mean, normalize.std)
    )
    levels: Samples = samples * std + mean
    return levels


def _stacked(given: Sequence[Sample | BadImage]) -> Samples:
    samples = []
    for one in given:
        if isinstance(one, BadImage):
            raise one
        samples.append(one)
    return np.stack(samples).astype(np.float32, copy=False)
