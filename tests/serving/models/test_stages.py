"""The stages of a cascade on made-up pictures, networks and postprocessings: who gets which answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from onestream.postprocess.postprocessing import Tensors
from onestream.preprocess import BadImage, Decode, Definition, Limits, OutOfMemory, Resize
from onestream.preprocess.operations import Region
from onestream.serving.building.triton_config import Tensor
from onestream.serving.models.callers import Caller, NobodyWaits
from onestream.serving.models.stages import NetworkFailed, Networks, OpenStage, Pixels, Stages

SIDE = 10
PICTURE_HW = (40, 1000)
FIND = Definition(operations=[Decode()])
REGIONS = Definition(operations=[Region(of="find"), Resize(mode="exact", size=(4, 4))])
FOUND = (Tensor("boxes", "float32", (-1, 4)), Tensor("scores", "float32", (-1,)), Tensor("image_size", "int32", (2,)))
VALUE = (Tensor("value", "int32", (1,)), Tensor("pair", "int32", (2,)))


def picture(count: int) -> Pixels:
    """A picture with so many boxes in it."""
    return np.full((*PICTURE_HW, 3), count, np.uint8)


class Cutter:
    """The sample of a picture is the picture, that of a region its place; ``bad`` gives what it cannot cut."""

    def __init__(self, bad: dict[int, BadImage] | None = None) -> None:
        self.bad = bad or {}

    def run(self, pixels: Pixels, quads: Any = None) -> Any:
        if quads is None:
            return pixels
        numbers = [int(quad[0, 0] // SIDE) for quad in quads]
        return [self.bad.get(number, np.full((1, 1, 3), number, np.uint8)) for number in numbers]


class Echo(Networks):
    """Gives its samples back, and remembers how many it got at once."""

    def __init__(self, failing: int | None = None) -> None:
        self.failing, self.batches, self.callers = failing, [], set()

    def run(self, stage: str, samples: Sequence[Pixels], caller: Caller) -> list[Tensors]:
        self.callers.add(caller)
        self.batches.append((stage, len(samples)))
        if stage != "find" and any(sample[0, 0, 0] == self.failing for sample in samples):
            raise NetworkFailed("it broke")
        return [{"out": sample[None]} for sample in samples]


def boxes(outputs: Tensors, sizes: Sequence[Any]) -> list[Tensors]:
    count = int(outputs["out"][0, 0, 0, 0])
    found = np.array([[place * SIDE, 0, place * SIDE + SIDE, SIDE] for place in range(count)], np.float32)
    scores = np.linspace(1, 0.5, count, dtype=np.float32)
    size = np.array([sizes[0]], np.int32)
    return [{"boxes": found.reshape(1, -1, 4), "scores": scores[None], "image_size": size}]


def value(outputs: Tensors, _sizes: Sequence[Any]) -> list[Tensors]:
    place = int(outputs["out"][0, 0, 0, 0])
    return [{"value": np.array([[place]], np.int32), "pair": np.array([[place, -place]], np.int32)}]


def is_odd(answer: Tensors) -> bool:
    return bool(answer["value"][0, 0] % 2)


def turn(outputs: Tensors, _sizes: Sequence[Any]) -> list[Tensors]:
    place = int(outputs["out"][0, 0, 0, 0])
    return [{"degrees": np.array([[90 * place]], np.int32)}]


def stages(*later: OpenStage, networks: Networks | None = None, limits: Limits | None = None) -> Stages:
    return Stages([FIRST, *later], networks or Echo(), limits=limits or Limits())


FIRST = OpenStage("find", FIND, Cutter(), boxes, FOUND)
LOOK = OpenStage("look", REGIONS, Cutter(), value, VALUE)


@pytest.mark.parametrize("count", [0, 1, 2, 10])
def test_every_region_gets_its_row(count: int) -> None:
    answer = stages(LOOK).run(picture(count))
    assert set(answer) == {"boxes", "find_scores", "image_size", "value", "pair", "left_out"}
    assert answer["boxes"].shape == (1, count, 4)
    assert answer["find_scores"].shape == (1, count)
    assert answer["value"].tolist() == [list(range(count))]
    assert answer["pair"].tolist() == [[[place, -place] for place in range(count)]]
    assert answer["image_size"].tolist() == [list(PICTURE_HW)]
    assert answer["left_out"].tolist() == [[0]]


def test_a_network_that_fails_for_a_region_fails_the_picture() -> None:
    with pytest.raises(NetworkFailed, match="it broke"):
        stages(LOOK, networks=Echo(failing=3)).run(picture(5))


def test_a_region_that_would_be_too_large_is_left_out_and_told() -> None:
    cutter = Cutter({1: BadImage("too_many_pixels", "it would be too large")})
    answer = stages(OpenStage("look", REGIONS, cutter, value, VALUE)).run(picture(3))
    assert answer["value"].tolist() == [[0, 2]]
    assert answer["left_out"].tolist() == [[1]]


def test_too_little_memory_for_a_region_is_no_answer_without_it() -> None:
    cutter = Cutter({1: OutOfMemory("too little memory")})
    with pytest.raises(OutOfMemory):
        stages(OpenStage("look", REGIONS, cutter, value, VALUE)).run(picture(3))

    class Short(Cutter):
        def run(self, *_: Any) -> Any:
            raise MemoryError

    with pytest.raises(OutOfMemory, match="too little memory is free for the regions"):
        Stages([OpenStage("find", FIND, Short(), boxes, FOUND), LOOK], Echo(), limits=Limits()).run(picture(3))


def test_above_the_limit_the_best_regions_stay_and_the_rest_is_counted() -> None:
    answer = stages(LOOK, limits=Limits(max_regions=4)).run(picture(9))
    assert answer["value"].tolist() == [[0, 1, 2, 3]]
    assert answer["left_out"].tolist() == [[5]]


def test_a_region_that_a_stage_does_not_keep_has_no_row() -> None:
    answer = stages(OpenStage("odd", REGIONS, Cutter(), value, VALUE, is_odd), LOOK).run(picture(6))
    assert answer["odd_value"].tolist() == answer["value"].tolist() == [[1, 3, 5]]
    assert answer["boxes"][0, :, 0].tolist() == [10, 30, 50]


def test_a_later_stage_takes_regions_turned() -> None:
    turner = OpenStage("turn", REGIONS, Cutter(), turn, (Tensor("degrees", "int32", (1,)),))
    seen: list[Any] = []

    class Watching(Cutter):
        def run(self, pixels: Pixels, quads: Any = None) -> Any:
            seen.extend(quads)
            return super().run(pixels, quads)

    regions = Definition(operations=[Region(of="turn"), Resize(mode="exact", size=(4, 4))])
    answer = stages(turner, OpenStage("look", regions, Watching(), value, VALUE)).run(picture(4))
    assert answer["turn_degrees"].tolist() == [[0, 90, 180, 270]]
    corners = [[0, 0], [10, 0], [10, 10], [0, 10]]
    for place, quad in enumerate(seen):
        # What was the top left corner of the content has moved on by a corner for each quarter.
        expected = np.roll(np.array(corners) + np.array([place * SIDE, 0]), -place, axis=0)
        assert quad.tolist() == expected.tolist()


def test_what_a_stage_saw_upright_goes_on_so() -> None:
    """The second region is tall: its content begins at the picture's top right corner, and then is upside down."""
    places = np.array([[[0, 0], [30, 0], [30, 10], [0, 10]], [[40, 0], [50, 0], [50, 30], [40, 30]]], np.float32)

    def quads(_outputs: Tensors, sizes: Sequence[Any]) -> list[Tensors]:
        return [{"quads": places[None], "image_size": np.array([sizes[0]], np.int32)}]

    def upside_down(_outputs: Tensors, _sizes: Sequence[Any]) -> list[Tensors]:
        return [{"degrees": np.array([[180]], np.int32)}]

    def region(of: str) -> Definition:
        return Definition(operations=[Region(of=of, shape="quad", upright=1.5), Resize(mode="exact", size=(4, 4))])

    first = OpenStage("find", FIND, Cutter(), quads, (Tensor("quads", "float32", (-1, 4, 2)), FOUND[2]))
    turner = OpenStage("turn", region("find"), Cutter(), upside_down, (Tensor("degrees", "int32", (1,)),))
    look = OpenStage("look", region("turn"), Cutter(), value, VALUE)
    answer = Stages([first, turner, look], Echo(), limits=Limits()).run(picture(1))
    seen = [[[30, 10], [0, 10], [0, 0], [30, 0]], [[40, 30], [40, 0], [50, 0], [50, 30]]]
    assert answer["quads"][0].tolist() == seen


class Leaving(Caller):
    """Waits for the first two parts of a picture."""

    def __init__(self) -> None:
        self.left = iter([True, True, False])

    def is_waiting(self) -> bool:
        return next(self.left)


def test_nobody_works_for_a_caller_who_has_left() -> None:
    networks, caller = Echo(), Leaving()
    with pytest.raises(NobodyWaits):
        stages(LOOK, networks=networks).run(picture(100), caller)
    assert networks.batches == [("find", 1), ("look", 16), ("look", 16)]
    assert networks.callers == {caller}


def test_regions_whose_order_means_something_are_ordered_as_they_were_turned() -> None:
    first = OpenStage("find", FIND, Cutter(), boxes, FOUND, order=lambda quads: np.argsort(-quads[:, 0, 0]))
    answer = Stages([first, LOOK], Echo(), limits=Limits()).run(picture(3))
    assert answer["value"].tolist() == [[2, 1, 0]]
    assert answer["boxes"][0, :, 0].tolist() == [20, 10, 0]
    assert answer["find_scores"].tolist() == [[0.5, 0.75, 1.0]]
