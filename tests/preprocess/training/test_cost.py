"""What ``onestream augment --cost`` says of each operation, on a backend whose costs are known."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_sets import stretched

from onestream.preprocess import BadImage, BadSample
from onestream.preprocess.collage import Collage
from onestream.preprocess.geometry import Size
from onestream.preprocess.training import Augmentation, cost
from onestream.preprocess.training.base_loader import Made
from onestream.preprocess.training.collages import Mixing
from onestream.preprocess.training.order import Slot
from onestream.preprocess.training.sheet import Subject

PHOTO = Path(__file__).parents[3] / "examples" / "photos" / "cat.jpg"
DEFINITION = stretched(60, 80)
SERVED_S, WARPED_S, BOX_S, CHANGE_S = 0.010, 0.015, 0.008, 0.002


class Clock:
    """CPU time that passes where something works; what is done for the first time takes twice as long."""

    def __init__(self) -> None:
        self.now, self.done = 0.0, set[Collage | None]()

    def process_time(self) -> float:
        return self.now

    def work(self, seconds: float, what: Collage | None) -> None:
        self.now += seconds if what in self.done else 2 * seconds
        self.done.add(what)


class Served:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def run(self, images: Sequence[bytes]) -> list[Any]:
        self.clock.work(SERVED_S, None)
        return [np.zeros((60, 80, 3), np.uint8) for _ in images]

    def close(self) -> None:
        pass


class Maker(Served):
    def __init__(self, clock: Clock, mixing: Mixing) -> None:
        super().__init__(clock)
        self.mixing = mixing

    def __len__(self) -> int:
        return 1

    def size_hw(self, _index: int) -> Size:
        return 300, 451

    def objects(self, _index: int) -> None:
        return None

    def make(self, slots: Sequence[Slot], epoch: int) -> Made:
        collage = self.mixing.draw(epoch, slots[0].index, self)
        (part,) = collage.parts
        changes = len(part.variation.changes) + len(collage.changes)
        self.clock.work((WARPED_S if part.variation.box is None else BOX_S) + CHANGE_S * changes, collage)
        return Made([np.zeros((60, 80, 3), np.uint8)], {})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(cost, "compile", lambda *_, **__: Served(found))
    monkeypatch.setattr(cost, "CollageMaker", lambda _pixels, _files, mixing, **__: Maker(found, mixing))
    monkeypatch.setattr(time, "process_time", found.process_time)
    return found


@pytest.mark.usefixtures("clock")
def test_each_operation_costs_what_it_adds() -> None:
    always, never = {"probability": 1}, {"probability": 0}
    operations = [{"op": "box"}, {"op": "flip", **always}, {"op": "grayscale", **always}, {"op": "invert", **never}]
    chain = Augmentation([*operations, {"op": "rotation", "degrees": [5, 10]}])
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


def test_samples_that_are_mixed_have_costs_too() -> None:
    subjects = [Subject(str(number), PHOTO.read_bytes()) for number in range(4)]
    chain = Augmentation([{"op": "box", "area": [1, 1]}, {"op": "mosaic"}, {"op": "invert", "probability": 0}])
    found = cost.chain_cost(DEFINITION, chain, subjects, epochs=1, backend="reference")
    assert (found.images, [name for name, _ in found.added_ms]) == (4, ["box", "mosaic", "invert"])
    assert found.added_ms[2][1] == 0
