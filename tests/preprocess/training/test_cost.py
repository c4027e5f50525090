"""What ``onestream augment --cost`` says of each operation, on a backend whose costs are known."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onestream.preprocess import BadImage, BadSample, Decode, Definition, Output, Resize
from onestream.preprocess.training import Augmentation, cost
from onestream.preprocess.training.sheet import Subject
from onestream.preprocess.variation import Variation

PHOTO = Path(__file__).parents[3] / "examples" / "photos" / "cat.jpg"
DEFINITION = Definition(
    operations=[Decode(), Resize(mode="exact", size=(60, 80)), Output(layout="NHWC", dtype="uint8")]
)
SERVED_S, WARPED_S, BOX_S, CHANGE_S = 0.010, 0.015, 0.008, 0.002


class Clock:
    """CPU time that passes where something works; what is done for the first time takes twice as long."""

    def __init__(self) -> None:
        self.now, self.done = 0.0, set[Variation | None]()

    def compile(self, *_: Any, varied: bool = False, **__: Any) -> Any:
        return Timed(self, varied=varied)

    def process_time(self) -> float:
        return self.now


class Timed:
    def __init__(self, clock: Clock, *, varied: bool) -> None:
        self.clock, self.varied, self.closed = clock, varied, False

    def run(self, images: Sequence[bytes], vary: Sequence[Callable[..., Variation]] | None = None) -> list[Any]:
        assert (vary is not None) == self.varied
        taken, variation = SERVED_S, None
        if vary is not None:
            variation = vary[0]((300, 451))
            taken = (WARPED_S if variation.box is None else BOX_S) + CHANGE_S * len(variation.changes)
        first = variation not in self.clock.done
        self.clock.done.add(variation)
        self.clock.now += 2 * taken if first else taken
        return [np.zeros((60, 80, 3), np.uint8) for _ in images]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(cost, "compile", found.compile)
    monkeypatch.setattr(time, "process_time", found.process_time)
    return found


@pytest.mark.usefixtures("clock")
def test_each_operation_costs_what_it_adds() -> None:
    chain = Augmentation(
        [
            {"op": "box"},
            {"op": "flip", "probability": 1},
            {"op": "grayscale", "probability": 1},
            {"op": "invert", "probability": 0},
            {"op": "rotation", "degrees": [5, 10]},
        ]
    )
    found = cost.chain_cost(DEFINITION, chain, [Subject("cat", PHOTO.read_bytes())], epochs=3)
    assert found.images == 3
    assert found.served_ms == pytest.approx(10)
    assert [name for name, _ in found.added_ms] == ["box", "flip", "grayscale", "invert", "rotation"]
    assert [added for _, added in found.added_ms] == pytest.approx([-2, 0, 2, 0, 7])
    # What did not change a variation is not measured again.
    assert found.added_ms[3][1] == 0
    assert found.total_ms == pytest.approx(17)


@pytest.mark.usefixtures("clock")
def test_a_cost_is_the_mean_over_variations_of_which_some_have_it() -> None:
    chain = Augmentation([{"op": "box"}, {"op": "invert", "probability": 0.5}])
    found = cost.chain_cost(DEFINITION, chain, [Subject("cat", PHOTO.read_bytes())], epochs=40)
    happened = sum(
        len(chain.draw((300, 451), seed=0, epoch=epoch, index=0, definition=DEFINITION).changes) for epoch in range(40)
    )
    assert 10 < happened < 30
    assert dict(found.added_ms)["invert"] == pytest.approx(2 * happened / 40)


def test_a_picture_that_is_none_is_named() -> None:
    with pytest.raises(BadSample, match=r"notes\.txt: bad image") as caught:
        cost.chain_cost(DEFINITION, Augmentation(), [Subject("notes.txt", b"no picture")], backend="reference")
    assert not isinstance(caught.value, BadImage)
