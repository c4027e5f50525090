"""What the operations of an augmentation cost on given pictures: each as what it adds to the chain before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from onestream.preprocess.backends.base import Compiled
from onestream.preprocess.compile import compile
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage, BadSample
from onestream.preprocess.geometry import Size
from onestream.preprocess.limits import Limits
from onestream.preprocess.training.augmentation import Augmentation
from onestream.preprocess.training.sheet import Subject
from onestream.preprocess.variation import Variation, Vary

_ROUNDS = 4
"""Of which the first does not count: memory pools grow in it."""
_Drawing = Callable[..., Variation]


@dataclass(frozen=True, slots=True)
class Cost:
    """Mean CPU milliseconds an image, of ``images`` variations.

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
    chains = [augmentation.model_copy(update={"operations": operations[: end + 1]}) for end in range(len(operations))]
    served = compile(pixels, backend=backend, limits=limits)
    varied = compile(pixels, backend=backend, limits=limits, varied=True)
    seconds: list[npt.NDArray[np.float64]] = []
    try:
        for index, subject in enumerate(subjects):
            for epoch in range(epochs):
                drawing = partial(
                    _draw, seed=seed, epoch=epoch, index=index, definition=definition, objects=subject.boxes
                )
                try:
                    rounds = [_round(served, varied, subject.data, chains, drawing) for _ in range(_ROUNDS)]
                except BadImage as error:
                    raise BadSample(f"{subject.name}: {error}") from None
                seconds.append(np.min(rounds[1:], axis=0))
    finally:
        served.close()
        varied.close()
    means_ms = 1000 * np.mean(seconds, axis=0)
    names = (operation.op for operation in operations)
    return Cost(len(seconds), float(means_ms[0]), tuple(zip(names, np.diff(means_ms).tolist(), strict=True)))


def _round(
    served: Compiled, varied: Compiled, data: bytes, chains: Sequence[Augmentation], drawing: _Drawing
) -> list[float]:
    """Seconds as served, then by each chain; one that draws the same as the one before takes as long."""
    found, before = [_seconds(served, data, None)], None
    for chain in chains:
        drawn: list[Variation] = []
        seconds = _seconds(varied, data, [partial(drawing, chain, drawn)])
        found.append(found[-1] if drawn[-1:] == [before] else seconds)
        before = drawn[-1]
    return found


def _seconds(compiled: Compiled, data: bytes, varies: Sequence[Vary] | None) -> float:
    began = time.process_time()
    (sample,) = compiled.run([data]) if varies is None else compiled.run([data], varies)
    taken = time.process_time() - began
    if isinstance(sample, BadImage):
        raise sample
    return taken


def _draw(chain: Augmentation, drawn: list[Variation], size_hw: Size, **sample: Any) -> Variation:
    drawn.append(chain.draw(size_hw, **sample))
    return drawn[-1]
