"""What the operations of an augmentation cost on given pictures: each as what it adds to the chain before it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from onestream.preprocess.backends.base import Compiled
from onestream.preprocess.compile import compile
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage, BadSample
from onestream.preprocess.geometry import Size
from onestream.preprocess.limits import Limits
from onestream.preprocess.training.augmentation import Augmentation
from onestream.preprocess.training.sheet import Subject
from onestream.preprocess.variation import Variation

_ROUNDS = 4
"""Of which the first does not count: memory pools grow in it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Mean CPU milliseconds an image, of ``images`` variations.

    ``served_ms``: what serving does, from the file to pixels. ``added_ms``: for each operation its name and what it
    adds to that and the operations before it; below 0 where less is to be decoded or resized then. ``draw_ms``: drawing
    the values.
    """

    images: int
    served_ms: float
    added_ms: tuple[tuple[str, float], ...]
    draw_ms: float

    @property
    def total_ms(self) -> float:
        """Of the whole chain."""
        return self.served_ms + sum(added for _, added in self.added_ms) + self.draw_ms


def chain_cost(
    definition: Definition,
    augmentation: Augmentation,
    subjects: Sequence[Subject],
    *,
    epochs: int = 6,
    seed: int = 0,
    backend: Literal["dali", "reference"] = "dali",
    limits: Limits | None = None,
) -> Cost:
    """Measure what each operation costs, on the variations that ``contact_sheet`` shows with the same arguments.

    Every variation is made one image at a time on one thread, as served and then with one more operation at a time, in
    rounds; of each the fastest counts, in CPU time of the process, so that other programs matter little. Where an
    operation did not change a variation it added nothing. Raises as ``contact_sheet``.
    """
    limits, pixels = limits or Limits(), definition.pixels()
    operations = augmentation.operations
    chains = [
        augmentation.model_copy(update={"operations": operations[: count + 1]}) for count in range(len(operations))
    ]
    served = compile(pixels, backend=backend, limits=limits)
    varied = compile(pixels, backend=backend, limits=limits, varied=True)
    seconds = np.zeros(len(chains) + 1)
    drawing_s, images = 0.0, 0
    try:
        for index, subject in enumerate(subjects):
            try:
                size_hw = limits.check(subject.data).oriented_hw
                for epoch in range(epochs):
                    began = time.process_time()
                    augmentation.draw(
                        size_hw, seed=seed, epoch=epoch, index=index, definition=definition, objects=subject.boxes
                    )
                    drawing_s += time.process_time() - began
                    growing = [
                        chain.draw(
                            size_hw, seed=seed, epoch=epoch, index=index, definition=definition, objects=subject.boxes
                        )
                        for chain in chains
                    ]
                    seconds += _fastest(served, varied, subject.data, growing)
                    images += 1
            except BadImage as error:
                raise BadSample(f"{subject.name}: {error}") from None
    finally:
        served.close()
        varied.close()
    means_ms = 1000 * seconds / images
    added = tuple(
        (operation.op, float(after - before))
        for operation, before, after in zip(operations, means_ms[:-1], means_ms[1:], strict=True)
    )
    return Cost(images, float(means_ms[0]), added, 1000 * drawing_s / images)


def _fastest(
    served: Compiled, varied: Compiled, data: bytes, growing: Sequence[Variation]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Seconds as served, then of each variation; one that is equal to that before it takes as long."""
    found = np.full((_ROUNDS, len(growing) + 1), np.inf)
    for number in range(_ROUNDS):
        found[number, 0] = _seconds(served, data, None)
        for place, variation in enumerate(growing):
            repeated = place > 0 and variation == growing[place - 1]
            found[number, place + 1] = found[number, place] if repeated else _seconds(varied, data, variation)
    fastest: np.ndarray[tuple[int], np.dtype[np.float64]] = found[1:].min(axis=0)
    return fastest


def _seconds(compiled: Compiled, data: bytes, variation: Variation | None) -> float:
    began = time.process_time()
    (sample,) = compiled.run([data]) if variation is None else compiled.run([data], [partial(_given, variation)])
    taken = time.process_time() - began
    if isinstance(sample, BadImage):
        raise sample
    return taken


def _given(variation: Variation, _size_hw: Size) -> Variation:
    return variation
