"""The stages of a cascade, run on pictures: what all of its forms do, each with its own networks behind it.

Every picture is decoded once, whole. A stage's pixels are made from the decoded picture, so nothing of a region is
resampled twice, and a region's result depends on nothing but the picture and the region. Pictures and samples are on
the device on which the stages run (``stage_runners``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Generic

import numpy as np
import numpy.typing as npt

from onestream.postprocess.kinds.base import corners_of, place_of, turned_by
from onestream.postprocess.parameters import NO_PARAMETERS, Parameters
from onestream.preprocess import BadImage, Definition, Limits, OutOfMemory
from onestream.preprocess.backends.batches import groups
from onestream.preprocess.geometry import Quads, Size
from onestream.preprocess.quads import MOST_SAMPLE_PIXELS, choose
from onestream.serving.errors import NetworkFailed
from onestream.serving.models.deadline import ANYBODY, Caller, NobodyWaits
from onestream.serving.models.stage_runners import Networks, P, Samples
from onestream.wire.refusals import MAY_BE_SENT_AGAIN
from onestream.wire.tensor_names import BOXES, CLASS_IDS, IMAGE_SIZE, LABELS, LEFT_OUT, QUADS, SCORES

if TYPE_CHECKING:
    from onestream.postprocess.kinds import Postprocess, Tensors
    from onestream.serving.built.triton_config import Tensor
    from onestream.serving.cascade import ServedStage

StageParameters = Mapping[str, Parameters]
"""The parameters of one picture's request, by the stages that take them."""

_REGIONS_AT_ONCE = 16
"""Regions whose pixels are in memory at once on a CPU, and after which a caller may be seen to have left."""
_DTYPES = {"string": "object"}
_NO_PARAMETERS: StageParameters = {}


class HeavyRegions(Exception):
    """A picture has regions of more work than is done at once; they may be worked on out of the way of others."""


@dataclass(frozen=True, slots=True)
class OpenStage:
    """One stage: what is done on every device alike.

    ``answer`` are the tensors that it gives of one region, without a batch dimension; ``keeps`` says of them, with it,
    whether the region stays. ``order`` is that in which the first stage's regions are told. ``gpu_batch`` is the most
    samples that its network takes at once on a GPU; ``finds_lines`` whether its regions are lines of text.
    """

    name: str
    definition: Definition
    postprocess: Postprocess
    answer: Sequence[Tensor]
    keeps: Callable[[Tensors], bool] = lambda _: True
    order: Callable[[Quads], npt.NDArray[np.int64]] = lambda quads: np.arange(len(quads))
    gpu_batch: int = 1
    finds_lines: bool = False

    @classmethod
    def of(cls, served: ServedStage, postprocess: Postprocess) -> OpenStage:
        """A stage as it was built."""
        return cls(
            served.name,
            served.definition,
            postprocess,
            served.answer,
            served.postprocess.keeps,
            served.postprocess.order,
            served.gpu_batch,
            served.postprocess.finds_lines,
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """The regions that a stage gave: their places among those of the first stage, their corners, its tensors.

    The tensors have a row for each region, without a batch dimension.
    """

    places: npt.NDArray[np.int64]
    quads: Quads
    tensors: Tensors


@dataclass(slots=True, eq=False)
class _Journey(Generic[P]):
    """A picture on its way through the stages; it ends at the first failure, which is no other picture's.

    ``left_out`` are regions of the first stage that did not go on, ``beyond`` is how many it found above its own bound.
    """

    picture: P
    caller: Caller
    parameters: StageParameters
    found: dict[str, _Found] = field(default_factory=dict)
    left_out: set[int] = field(default_factory=set)
    beyond: int = 0
    failure: Exception | None = None

    @property
    def size_hw(self) -> Size:
        """In pixels."""
        return self.picture.shape[0], self.picture.shape[1]

    def parameters_of(self, stage: OpenStage) -> Parameters:
        """Those that the picture's request sets of a stage."""
        return self.parameters.get(stage.name, NO_PARAMETERS)

    @contextmanager
    def own(self) -> Iterator[None]:
        """What fails in the block fails this picture."""
        try:
            yield
        except MemoryError:
            self.failure = _out_of_memory()
        except Exception as error:
            # Without the frames that it passed through, which hold pictures (``BadImage.as_result``).
            error.__traceback__ = error.__context__ = None
            self.failure = error


@dataclass(slots=True, eq=False)
class _Look(Generic[P]):
    """A stage's look at the regions that it takes of one picture, of which some were kept so far, each with its row.

    ``pixels`` are those of each region's sample.
    """

    journey: _Journey[P]
    places: npt.NDArray[np.int64]
    quads: Quads
    pixels: npt.NDArray[np.int64]
    kept: list[int] = field(default_factory=list)
    rows: list[Tensors] = field(default_factory=list)

    def found(self, answer: Sequence[Tensor]) -> _Found:
        """What the stage gave of the regions that were kept."""
        tensors = _stacked(self.rows, answer)
        return _Found(self.places[self.kept], turned_by(tensors, self.quads[self.kept]), tensors)


@dataclass(frozen=True, slots=True)
class _Region(Generic[P]):
    """A region of a look, by its number there."""

    look: _Look[P]
    number: int

    @property
    def pixels(self) -> int:
        """Of its sample."""
        return int(self.look.pixels[self.number])


class Stages(Generic[P]):
    """A cascade, but for what cuts its regions and runs its networks.

    Args:
        stages: in their order.
        networks: run what the stages ask.
        samples: makes of a stage what cuts and resizes for it.
        limits: of which ``max_regions``, or ``max_lines`` of text, of a picture go on to a later stage.
        timed: counts the time of its block under a step's name.
        looked_at: called with a later stage's name and the regions that it has worked on.
        regions_at_once: whose pixels are in memory at once, of all pictures together.
        most_work: pixels of one picture's samples for a stage; one with more fails with ``HeavyRegions``.
    """

    def __init__(
        self,
        stages: Sequence[OpenStage],
        networks: Networks[P],
        samples: Callable[[OpenStage], Samples[P]],
        *,
        limits: Limits,
        timed: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
        looked_at: Callable[[str, Quads], None] = lambda _stage, _quads: None,
        regions_at_once: int = _REGIONS_AT_ONCE,
        most_work: int = MOST_SAMPLE_PIXELS,
    ) -> None:
        self._stages, self._networks, self._most_work = stages, networks, most_work
        most = min(limits.max_regions, limits.max_lines) if stages[0].finds_lines else limits.max_regions
        self._limits = limits.model_copy(update={"max_regions": most})
        self._samples = {stage.name: samples(stage) for stage in stages}
        self._timed, self._looked_at, self._regions_at_once = timed, looked_at, regions_at_once

    def run(self, picture: P, caller: Caller = ANYBODY, parameters: StageParameters = _NO_PARAMETERS) -> Tensors:
        """The answer to a decoded picture, upright, (height, width, 3) RGB, with a batch dimension of 1.

        ``caller`` is who waits for it, ``parameters`` are those of the request. Raises ``NobodyWaits``,
        ``NetworkFailed``, ``HeavyRegions``, and ``BadImage`` where a stage cannot be applied to a picture of this size
        or memory is short.
        """
        (result,) = self.run_together([picture], [caller], [parameters])
        if isinstance(result, Exception):
            try:
                raise result
            finally:
                # An error that its own frame holds would keep the picture.
                del result
        return result

    def run_together(
        self, pictures: Sequence[P], callers: Sequence[Caller], parameters: Sequence[StageParameters] = ()
    ) -> list[Tensors | Exception]:
        """The same for several pictures, which go from stage to stage together; what is raised for one is returned.

        Raises what is true of all of them: what ``Samples`` and ``Networks.run`` raise.
        """
        own = parameters or [_NO_PARAMETERS] * len(pictures)
        journeys = [_Journey(*one) for one in zip(pictures, callers, own, strict=True)]
        try:
            for stage in self._stages:
                go = self._find if stage.definition.region is None else self._look_at
                go(stage, [journey for journey in journeys if journey.failure is None])
        except MemoryError:
            raise _out_of_memory() from None
        return [self._result(journey) for journey in journeys]

    def _find(self, stage: OpenStage, journeys: Sequence[_Journey[P]]) -> None:
        """Run the first stage: every picture is a sample."""
        with self._timed(f"{stage.name}_preprocess"):
            samples = self._samples[stage.name]([journey.picture for journey in journeys], None)
        good: list[tuple[_Journey[P], P]] = []
        for journey, sample in zip(journeys, samples, strict=True):
            if isinstance(sample, BadImage):
                journey.failure = sample
            else:
                good.append((journey, sample))

        def take(journey: _Journey[P], outputs: Tensors) -> None:
            (found,) = stage.postprocess(outputs, [journey.size_hw], [journey.parameters_of(stage)])
            journey.beyond = int(found.pop(LEFT_OUT, np.zeros(1)).item())
            tensors = {name: value if name == IMAGE_SIZE else value[0] for name, value in found.items()}
            quads = corners_of(tensors)
            journey.found[stage.name] = _Found(np.arange(len(quads)), quads, tensors)

        self._work(stage, [(journey, sample, partial(take, journey)) for journey, sample in good])

    def _look_at(self, stage: OpenStage, journeys: Sequence[_Journey[P]]) -> None:
        """Run a later stage on the regions of all pictures, some at a time; those stay of which it keeps the row."""
        looks: list[_Look[P]] = []
        for journey in journeys:
            with journey.own():
                looks.append(self._chosen(stage, journey))
        regions = [_Region(look, number) for look in looks for number in range(len(look.quads))]
        for some in groups(regions, max_items=self._regions_at_once, max_pixels=MOST_SAMPLE_PIXELS):
            self._look_at_some(stage, some)
        for look in looks:
            if look.journey.failure is None:
                with look.journey.own():
                    self._looked_at(stage.name, look.quads)
                    look.journey.found[stage.name] = look.found(stage.answer)

    def _chosen(self, stage: OpenStage, journey: _Journey[P]) -> _Look[P]:
        """The regions that a stage takes; those that a limit leaves out are told."""
        region = stage.definition.region
        assert region is not None
        earlier = journey.found[region.of]
        first = journey.found[self._stages[0].name].tensors
        said = {name: first[name][earlier.places] for name in (SCORES, CLASS_IDS, LABELS) if name in first}
        chosen = choose(
            stage.definition,
            earlier.quads,
            journey.size_hw,
            limits=self._limits,
            scores=said.get(SCORES),
            class_ids=said.get(CLASS_IDS),
            labels=said.get(LABELS),
        )
        if chosen.sample_pixels.sum() > self._most_work:
            raise HeavyRegions
        journey.left_out.update(earlier.places[chosen.left_out].tolist())
        return _Look(journey, earlier.places[chosen.indices], chosen.quads, chosen.sample_pixels)

    def _look_at_some(self, stage: OpenStage, regions: Sequence[_Region[P]]) -> None:
        """Run a stage on regions that follow each other."""
        numbers: dict[_Look[P], list[int]] = {}
        for region in regions:
            numbers.setdefault(region.look, []).append(region.number)
        for look in numbers:
            if look.journey.failure is None and not look.journey.caller.is_waiting():
                look.journey.failure = NobodyWaits()
        numbers = {look: some for look, some in numbers.items() if look.journey.failure is None}
        if not numbers:
            return
        with self._timed(f"{stage.name}_preprocess"):
            samples = self._samples[stage.name](
                [look.journey.picture for look in numbers], [look.quads[some] for look, some in numbers.items()]
            )
        good: list[tuple[_Look[P], int, P]] = []
        places = [(look, number) for look, some in numbers.items() for number in some]
        for (look, number), sample in zip(places, samples, strict=True):
            if isinstance(sample, OutOfMemory):
                look.journey.failure = sample
            elif isinstance(sample, BadImage):
                # Resized by this definition it would be larger than a picture may be.
                look.journey.left_out.add(int(look.places[number]))
            else:
                good.append((look, number, sample))

        def take(look: _Look[P], number: int, outputs: Tensors) -> None:
            (row,) = stage.postprocess(outputs, (), [look.journey.parameters_of(stage)])
            if stage.keeps(row):
                look.rows.append(row)
                look.kept.append(number)

        self._work(stage, [(look.journey, sample, partial(take, look, number)) for look, number, sample in good])

    def _work(self, stage: OpenStage, work: Sequence[tuple[_Journey[P], P, Callable[[Tensors], None]]]) -> None:
        """Run a stage's network on samples, each of a journey and with what takes its outputs."""
        work = [one for one in work if one[0].failure is None]
        if not work:
            return
        with self._timed(f"{stage.name}_network"):
            outputs = self._networks.run(
                stage.name, [sample for _, sample, _ in work], [journey.caller for journey, _, _ in work]
            )
        with self._timed(f"{stage.name}_postprocess"):
            for (journey, _, take), one in zip(work, outputs, strict=True):
                if journey.failure is None:
                    with journey.own():
                        if isinstance(one, NetworkFailed):
                            raise one
                        take(one)

    def _result(self, journey: _Journey[P]) -> Tensors | Exception:
        answer: Tensors = {}
        if journey.failure is None:
            with journey.own():
                answer = self._answer(journey.found, len(journey.left_out) + journey.beyond)
        return answer if journey.failure is None else journey.failure

    def _answer(self, found: Mapping[str, _Found], left_out: int) -> Tensors:
        """Of every stage the rows of the regions that went through all of them."""
        places = reduce(np.intersect1d, (one.places for one in found.values()))
        last = found[self._stages[-1].name]
        # A page that lies on its side, or upside down, is known for that only now.
        places = places[self._stages[0].order(last.quads[np.isin(last.places, places)])]
        answer: Tensors = {}
        for name, one in found.items():
            kept = np.searchsorted(one.places, places)
            for tensor, value in one.tensors.items():
                if tensor == IMAGE_SIZE:
                    answer[tensor] = value
                elif tensor == BOXES:
                    answer[tensor] = value[kept][None]
                elif tensor != QUADS:
                    answer[tensor if one is last else f"{name}_{tensor}"] = value[kept][None]
            if place_of(answer) == QUADS:
                answer[QUADS] = one.quads[kept][None]
        answer[LEFT_OUT] = np.array([[left_out]], np.int32)
        return answer


def _out_of_memory() -> OutOfMemory:
    return OutOfMemory(f"too little memory is free for the regions of a picture{MAY_BE_SENT_AGAIN}")


def _stacked(rows: Sequence[Tensors], answer: Sequence[Tensor]) -> Tensors:
    """Tensors of regions as one with a row for each; a region's single value is no dimension of its own."""
    stacked: Tensors = {}
    for tensor in answer:
        values = [row[tensor.name][0] for row in rows]
        dims = tuple(max(side, 0) for side in tensor.dims)
        table = np.stack(values) if values else np.empty((0, *dims), _DTYPES.get(tensor.dtype, tensor.dtype))
        stacked[tensor.name] = table[:, 0] if dims == (1,) else table
    return stacked
