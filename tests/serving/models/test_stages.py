"""The stages of a cascade on made-up pictures, networks and postprocessings: who gets which answer."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onestream.postprocess.kinds import Tensors
from onestream.preprocess import BadImage, Decode, Definition, Limits, OutOfMemory, Resize
from onestream.preprocess.operations import Region
from onestream.serving.built.triton_config import Tensor
from onestream.serving.errors import NetworkFailed
from onestream.serving.models.deadline import ANYBODY, Caller, NobodyWaits
from onestream.serving.models.stage_runners import Networks, Pixels
from onestream.serving.models.stages import HeavyRegions, OpenStage, Stages

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
    """The sample of a picture is the picture, that of a region its place; ``bad`` gives what it cannot cut.

    ``asked`` has how many pictures, and how many of their regions, it got at once.
    """

    def __init__(self, bad: dict[int, BadImage] | None = None) -> None:
        self.bad = bad or {}
        self.asked: list[tuple[int, int]] = []

    def __call__(self, pictures: Sequence[Pixels], quads: Any = None) -> list[Any]:
        if quads is None:
            self.asked.append((len(pictures), 0))
            return list(pictures)
        assert len(pictures) == len(quads)
        numbers = [int(quad[0, 0] // SIDE) for some in quads for quad in some]
        self.asked.append((len(pictures), len(numbers)))
        return [self.bad.get(number, np.full((1, 1, 3), number, np.uint8)) for number in numbers]


class Echo(Networks[Pixels]):
    """Gives its samples back, and remembers how many it got at once."""

    def __init__(self, failing: int | None = None) -> None:
        self.failing, self.batches, self.callers = failing, [], set()

    def run(self, stage: str, samples: Sequence[Pixels], callers: Sequence[Caller]) -> list[Tensors]:
        self.callers.update(callers)
        self.batches.append((stage, len(samples)))
        if stage != "find" and any(sample[0, 0, 0] == self.failing for sample in samples):
            raise NetworkFailed("it broke")
        return [{"out": sample[None]} for sample in samples]


def boxes(outputs: Tensors, sizes: Sequence[Any], _parameters: Any = ()) -> list[Tensors]:
    count = int(outputs["out"][0, 0, 0, 0])
    found = np.array([[place * SIDE, 0, place * SIDE + SIDE, SIDE] for place in range(count)], np.float32)
    scores = np.linspace(1, 0.5, count, dtype=np.float32)
    size = np.array([sizes[0]], np.int32)
    return [{"boxes": found.reshape(1, -1, 4), "scores": scores[None], "image_size": size}]


def value(outputs: Tensors, _sizes: Sequence[Any], _parameters: Any = ()) -> list[Tensors]:
    place = int(outputs["out"][0, 0, 0, 0])
    return [{"value": np.array([[place]], np.int32), "pair": np.array([[place, -place]], np.int32)}]


def is_odd(answer: Tensors) -> bool:
    return bool(answer["value"][0, 0] % 2)


def turn(outputs: Tensors, _sizes: Sequence[Any], _parameters: Any = ()) -> list[Tensors]:
    place = int(outputs["out"][0, 0, 0, 0])
    return [{"degrees": np.array([[90 * place]], np.int32)}]


def stages(
    *later: OpenStage,
    first: OpenStage | None = None,
    networks: Networks[Pixels] | None = None,
    limits: Limits | None = None,
    cutters: dict[str, Any] | None = None,
    **options: Any,
) -> Stages[Pixels]:
    def cutter(stage: OpenStage) -> Any:
        return (cutters or {}).get(stage.name) or Cutter()

    return Stages([first or FIRST, *later], networks or Echo(), cutter, limits=limits or Limits(), **options)


FIRST = OpenStage("find", FIND, boxes, FOUND)
LOOK = OpenStage("look", REGIONS, value, VALUE)


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


@pytest.mark.parametrize(
    ("lines", "limits", "most"),
    [
        (False, Limits(max_regions=4), 4),
        (False, Limits(max_lines=4), 9),
        (True, Limits(max_lines=4), 4),
        (True, Limits(max_lines=9, max_regions=2), 2),
    ],
)
def test_above_the_limit_the_best_regions_stay_and_the_rest_is_counted(lines: bool, limits: Limits, most: int) -> None:
    """Lines of text have a bound of their own; what the first stage left out is counted too."""

    def some(outputs: Tensors, sizes: Sequence[Any], _parameters: Any = ()) -> list[Tensors]:
        return [{**boxes(outputs, sizes)[0], "left_out": np.array([[600]], np.int32)}]

    first = replace(FIRST, finds_lines=lines)
    answer = stages(LOOK, first=first, limits=limits).run(picture(9))
    assert answer["value"].tolist() == [list(range(most))]
    assert answer["left_out"].tolist() == [[9 - most]]
    answer = stages(LOOK, first=replace(first, postprocess=some), limits=limits).run(picture(9))
    assert answer["left_out"].tolist() == [[609 - most]]


def test_a_region_that_cannot_be_looked_at() -> None:
    """One that would be too large is left out and told; no other failure is an answer without it."""
    large, short = (
        Cutter({1: error}) for error in (BadImage("too_many_pixels", "large"), OutOfMemory("too little memory"))
    )
    answer = stages(LOOK, cutters={"look": large}).run(picture(3))
    assert (answer["value"].tolist(), answer["left_out"].tolist()) == ([[0, 2]], [[1]])
    with pytest.raises(OutOfMemory):
        stages(LOOK, cutters={"look": short}).run(picture(3))

    def none_free(*_: Any) -> Any:
        raise MemoryError

    with pytest.raises(OutOfMemory, match="too little memory is free for the regions"):
        stages(LOOK, cutters={"find": none_free}).run(picture(3))
    with pytest.raises(NetworkFailed, match="it broke"):
        stages(LOOK, networks=Echo(failing=3)).run(picture(5))


def test_a_picture_of_much_work_is_told_from_others() -> None:
    some = stages(LOOK, most_work=3 * 4 * 4)
    heavy, light = some.run_together([picture(4), picture(3)], [ANYBODY] * 2)
    assert isinstance(heavy, HeavyRegions)
    assert_same(light, stages(LOOK).run(picture(3)))


def test_a_region_that_a_stage_does_not_keep_has_no_row_and_the_others_have_an_order() -> None:
    answer = stages(OpenStage("odd", REGIONS, value, VALUE, is_odd), LOOK).run(picture(6))
    assert answer["odd_value"].tolist() == answer["value"].tolist() == [[1, 3, 5]]
    assert answer["boxes"][0, :, 0].tolist() == [10, 30, 50]
    # Where their order means something they are ordered as they were turned.
    first = replace(FIRST, order=lambda quads: np.argsort(-quads[:, 0, 0]))
    answer = stages(LOOK, first=first).run(picture(3))
    assert answer["value"].tolist() == [[2, 1, 0]]
    assert answer["boxes"][0, :, 0].tolist() == [20, 10, 0]
    assert answer["find_scores"].tolist() == [[0.5, 0.75, 1.0]]


def test_a_later_stage_takes_regions_turned() -> None:
    turner = OpenStage("turn", REGIONS, turn, (Tensor("degrees", "int32", (1,)),))
    seen: list[Any] = []

    def watched(pictures: Sequence[Pixels], quads: Any = None) -> list[Any]:
        seen.extend(quads[0])
        return Cutter()(pictures, quads)

    regions = Definition(operations=[Region(of="turn"), Resize(mode="exact", size=(4, 4))])
    answer = stages(turner, OpenStage("look", regions, value, VALUE), cutters={"look": watched}).run(picture(4))
    assert answer["turn_degrees"].tolist() == [[0, 90, 180, 270]]
    corners = [[0, 0], [10, 0], [10, 10], [0, 10]]
    for place, quad in enumerate(seen):
        # What was the top left corner of the content has moved on by a corner for each quarter.
        expected = np.roll(np.array(corners) + np.array([place * SIDE, 0]), -place, axis=0)
        assert quad.tolist() == expected.tolist()


def test_what_a_stage_saw_upright_goes_on_so() -> None:
    """The second region is tall: its content begins at the picture's top right corner, and then is upside down."""
    places = np.array([[[0, 0], [30, 0], [30, 10], [0, 10]], [[40, 0], [50, 0], [50, 30], [40, 30]]], np.float32)

    def quads(_outputs: Tensors, sizes: Sequence[Any], _parameters: Any = ()) -> list[Tensors]:
        return [{"quads": places[None], "image_size": np.array([sizes[0]], np.int32)}]

    def upside_down(_outputs: Tensors, _sizes: Sequence[Any], _parameters: Any = ()) -> list[Tensors]:
        return [{"degrees": np.array([[180]], np.int32)}]

    def region(of: str) -> Definition:
        return Definition(operations=[Region(of=of, shape="quad", upright=1.5), Resize(mode="exact", size=(4, 4))])

    first = OpenStage("find", FIND, quads, (Tensor("quads", "float32", (-1, 4, 2)), FOUND[2]))
    turner = OpenStage("turn", region("find"), upside_down, (Tensor("degrees", "int32", (1,)),))
    look = OpenStage("look", region("turn"), value, VALUE)
    answer = stages(turner, look, first=first).run(picture(1))
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


class Gone(Caller):
    """Has left."""

    def is_waiting(self) -> bool:
        return False


def assert_same(one: Tensors | Exception, other: Tensors) -> None:
    assert set(one) == set(other)
    for name in other:
        np.testing.assert_array_equal(one[name], other[name])


def test_pictures_together_get_what_each_gets_alone_from_one_call_a_stage() -> None:
    counts = [3, 0, 9, 1]
    odd = OpenStage("odd", REGIONS, value, VALUE, is_odd)
    networks, cutters = Echo(), {name: Cutter() for name in ("find", "odd", "look")}
    limits, seen = Limits(max_regions=6), list[Any]()

    def noted(outputs: Tensors, sizes: Sequence[Any], parameters: Any = ()) -> list[Tensors]:
        seen.extend(parameters)
        return boxes(outputs, sizes)

    options: dict[str, Any] = {"limits": limits, "first": replace(FIRST, postprocess=noted)}
    together = stages(odd, LOOK, networks=networks, cutters=cutters, regions_at_once=100, **options)
    parameters = [{"find": {"max_detections": 1}}, {}, {}, {}]
    found = together.run_together([picture(count) for count in counts], [ANYBODY] * 4, parameters)
    assert seen == [{"max_detections": 1}, {}, {}, {}], "each reaches the stage that takes it"
    for count, one in zip(counts, found, strict=True):
        assert_same(one, stages(odd, LOOK, limits=limits).run(picture(count)))
    assert networks.batches == [("find", 4), ("odd", 10), ("look", 10)]
    # A picture without regions is in nobody's way.
    asked = {name: cutter.asked for name, cutter in cutters.items()}
    assert asked == {"find": [(4, 0)], "odd": [(3, 10)], "look": [(3, 10)]}


def test_what_fails_of_a_picture_is_its_own() -> None:
    """Of five the first has a postprocessing that fails; nobody waits for one, memory is short, one is too large."""

    def broken(outputs: Tensors, sizes: Sequence[Any], _parameters: Any = ()) -> list[Tensors]:
        if int(outputs["out"][0, 0, 0, 0]) == 11:
            raise ZeroDivisionError
        return boxes(outputs, sizes)

    class Picky(Cutter):
        """Cannot take a picture of 13, and no region of one of 12."""

        def __call__(self, pictures: Sequence[Pixels], quads: Any = None) -> list[Any]:
            found = super().__call__(pictures, quads)
            if quads is None:
                large = BadImage("too_many_pixels", "it would be too large")
                return [large if one[0, 0, 0] == 13 else one for one in found]
            of_each = [int(one[0, 0, 0]) for one, some in zip(pictures, quads, strict=True) for _ in some]
            return [OutOfMemory("short") if of == 12 else one for of, one in zip(of_each, found, strict=True)]

    picky = Picky()
    first = replace(FIRST, postprocess=broken)
    together = stages(LOOK, first=first, cutters={"find": picky, "look": picky}, regions_at_once=4)
    callers = [ANYBODY, Gone(), ANYBODY, ANYBODY, ANYBODY]
    failed, left, short, large, good = together.run_together([picture(count) for count in (11, 5, 12, 13, 9)], callers)
    assert isinstance(failed, ZeroDivisionError)
    assert isinstance(left, NobodyWaits)
    assert isinstance(short, OutOfMemory)
    assert large.code == "too_many_pixels"
    assert_same(good, stages(LOOK).run(picture(9)))
    # Who has left, and who cannot go on, is cut no more.
    assert sum(regions for _, regions in picky.asked) < 5 + 12 + 9


def test_samples_that_are_large_are_not_in_memory_together() -> None:
    """Of 8 regions, each of 9 million pixels for the network, three come at once; one is always taken."""
    large = Definition(operations=[Region(of="find"), Resize(mode="exact", size=(3000, 3000))])
    cutter, look = Cutter(), OpenStage("look", large, value, VALUE)
    together = stages(look, cutters={"look": cutter}, regions_at_once=100)
    found = together.run_together([picture(2)] * 4, [ANYBODY] * 4)
    assert cutter.asked == [(2, 3), (2, 3), (1, 2)]
    assert all(isinstance(one, dict) and one["value"].shape == (1, 2) for one in found)


def test_a_failure_keeps_no_picture_in_memory() -> None:
    """Else it would stay until Python looks for circles, which it does seldom."""

    def broken(_outputs: Tensors, _sizes: Sequence[Any], _parameters: Any = ()) -> list[Tensors]:
        raise ZeroDivisionError

    failing = stages(LOOK, first=replace(FIRST, postprocess=broken))
    gc.disable()
    try:
        pixels = picture(3)
        gone = weakref.ref(pixels)
        with contextlib.suppress(ZeroDivisionError):
            failing.run(pixels)
        (kept,) = failing.run_together([pixels], [ANYBODY])
        assert isinstance(kept, ZeroDivisionError)
        del pixels
        assert gone() is None
    finally:
        gc.enable()
