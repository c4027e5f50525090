"""What the operations of an augmentation cost on given pictures: each as what it adds to the chain before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.preprocess.backends.base import ON_CPU, CpuBackendName
from onestream.preprocess.compile import compile
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadSample
from onestream.preprocess.limits import Limits
from onestream.preprocess.training.augmentation import Augmentation
from onestream.preprocess.training.base_loader import Bad
from onestream.preprocess.training.collages import CollageMaker, Mixing
from onestream.preprocess.training.order import Slot
from onestream.preprocess.training.sheet import ShownPictures, Subject

_ROUNDS = 4
"""Of which the first does not count: memory pools grow in it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Mean CPU milliseconds an image, of ``images`` samples.

    ``served_ms``: what serving does, from the file to pixels. ``added_ms``: for each operation its name and what it
    adds to that and the operations before it, the drawing of its values too; below 0 where less is to be decoded or
    resized then.
    """

    images: int
    served_ms: float
    added_ms: tuple[tuple[str, float], ...]

    @property
    def total_ms(self) -> float:
        """Of the whole chain."""
        return self.served_ms + sum(added for _, added in self.added_ms)


def chain_cost(
    definition: Definition,
    augmentation: Augmentation,
    subjects: Sequence[Subject],
    *,
    epochs: int = 6,
    seed: int = 0,
    backend: CpuBackendName = ON_CPU,
    limits: Limits | None = None,
) -> Cost:
    """Measure what each operation costs, on the samples that ``contact_sheet`` shows with the same arguments.

    Every sample is made by itself on one thread, as served and then with one more operation at a time, in
    rounds; of each the fastest counts, in CPU time of the process, so that other programs matter little. Where an
    operation did not change what was drawn it added nothing. Raises as ``contact_sheet``.
    """
    limits, pixels = limits or Limits(), definition.pixels()
    operations = augmentation.operations
    chains = [augmentation.model_copy(update={"operations": operations[: end + 1]}) for end in range(len(operations))]
    shown = ShownPictures(definition, augmentation, subjects, seed)
    served = compile(pixels, backend=backend, limits=limits)
    maker = CollageMaker(
        pixels, shown, Mixing(shown.draw, shown.objects), backend=backend, limits=limits, max_batch_size=1
    )

    def one_round(index: int, epoch: int) -> list[float]:
        """Seconds as served, then by each chain; one that draws the same as the one before takes as long."""
        found, before = [_seconds(lambda: served.run([subjects[index].data]), subjects[index])], None
        for chain in chains:
            shown.augmentation = chain
            taken = _seconds(lambda: maker.make([Slot(index)], epoch).samples, subjects[index])
            drawn = shown.drawn[index][-1]
            found.append(found[-1] if drawn == before else taken)
            before = drawn
        return found

    seconds: list[npt.NDArray[np.float64]] = []
    try:
        for index in range(len(subjects)):
            for epoch in range(epochs):
                rounds = [one_round(index, epoch) for _ in range(_ROUNDS)]
                seconds.append(np.min(rounds[1:], axis=0))
    finally:
        served.close()
        maker.close()
    means_ms = 1000 * np.mean(seconds, axis=0)
    names = (operation.op for operation in operations)
    return Cost(len(seconds), float(means_ms[0]), tuple(zip(names, np.diff(means_ms).tolist(), strict=True)))


def _seconds(make: Callable[[], Sequence[Any]], subject: Subject) -> float:
    began = time.process_time()
    (sample,) = make()
    taken = time.process_time() - began
    if isinstance(sample, Bad):
        raise BadSample(f"{subject.name}: {sample}")
    return taken
