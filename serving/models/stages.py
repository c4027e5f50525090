"""The stages of a cascade, run on pictures: what both of its forms do, each with its own networks behind it.

Every picture is decoded once, whole. A stage's pixels are made from the decoded picture, so nothing of a region is
resampled twice, and a region's result depends on nothing but the picture and the region.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from onestream.postprocess.postprocessing import Postprocess, Tensors
from onestream.preprocess import BadImage, Definition, FromPicture, Limits, OutOfMemory, compile_from_picture
from onestream.preprocess.geometry import Quads, Size
from onestream.preprocess.quads import choose, quads_of, turned
from onestream.serving.building.triton_config import Tensor
from onestream.serving.cascade import ServedStage
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.models import deadline
from onestream.serving.models.callers import ANYBODY, Caller, NobodyWaits
from onestream.wire.refusals import MAY_BE_SENT_AGAIN
from onestream.wire.tensor_names import BOXES, CLASS_IDS, DEGREES, IMAGE_SIZE, LABELS, LEFT_OUT, QUADS, SCORES

Pixels = npt.NDArray[np.uint8]

_QUARTER = 90
_CHUNK = 16
"""Regions whose pixels are in memory at once, and after which a caller may be seen to have left."""
_DTYPES = {"string": "object"}


class NetworkFailed(Exception):
    """A network gave no outputs for a sample. ``is_overload``: it may be asked again later."""

    def __init__(self, reason: str, *, is_overload: bool = False) -> None:
        super().__init__(reason)
        self.is_overload = is_overload


class Networks(ABC):
    """What runs the network of a stage."""

    @abstractmethod
    def run(self, stage: str, samples: Sequence[Pixels], caller: Caller) -> list[Tensors]:
        """The outputs for each sample, uint8 (height, width, channels) of any shape, with a batch dimension of 1.

        ``caller`` waits for the picture's answer. Raises ``NetworkFailed`` and ``NobodyWaits``.
        """

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Release what is held."""


class OwnNetworks(Networks):
    """Networks in this process, by their stages."""

    def __init__(self, engines: Mapping[str, OnnxRuntimeEngine]) -> None:
        self._engines = engines

    def run(self, stage: str, samples: Sequence[Pixels], caller: Caller) -> list[Tensors]:  # noqa: ARG002 (no request)
        """See ``Networks.run``. Batches of regions do not pay on a CPU: one region's activations fit the cache."""
        return [self._run(stage, sample) for sample in samples]

    def _run(self, stage: str, sample: Pixels) -> Tensors:
        # A page of long lines takes longer than any batch of single pictures.
        deadline.extend()
        try:
            return self._engines[stage].run(sample[None])
        except Exception as error:  # ONNX Runtime's exceptions share no public base class
            raise NetworkFailed(f"the network of stage {stage} failed: {type(error).__name__}") from None


@dataclass(frozen=True, slots=True)
class OpenStage:
    """One stage, ready to run.

    ``answer`` are the tensors that it gives of one region, without a batch dimension; ``keeps`` says of them, with it,
    whether the region stays. ``order`` is that in which the first stage's regions are told.
    """

    name: str
    definition: Definition
    from_picture: FromPicture
    postprocess: Postprocess
    answer: tuple[Tensor, ...]
    keeps: Callable[[Tensors], bool] = lambda _: True
    order: Callable[[Quads], npt.NDArray[np.int64]] = lambda quads: np.arange(len(quads))

    @classmethod
    def open(cls, served: ServedStage, postprocess: Postprocess, *, limits: Limits) -> OpenStage:
        """A stage as it was built, with its definition compiled for the CPU; for one thread."""
        return cls(
            served.name,
            served.definition,
            compile_from_picture(served.definition.pixels(), backend="dali", limits=limits),
            postprocess,
            served.answer,
            served.postprocess.keeps,
            served.postprocess.order,
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """The regions that a stage gave: their places among those of the first stage, their corners, its tensors.

    The tensors have a row for each region, without a batch dimension.
    """

    places: npt.NDArray[np.int64]
    quads: Quads
    tensors: Tensors


class Stages:
    """A cascade on the CPU, but for its networks.

    Args:
        stages: in their order.
        networks: run what the stages ask.
        limits: of which ``max_regions`` of a picture go on to a later stage.
        timed: counts the time of its block under a step's name.
        looked_at: called with a later stage's name and the regions that it has worked on.
    """

    def __init__(
        self,
        stages: Sequence[OpenStage],
        networks: Networks,
        *,
        limits: Limits,
        timed: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
        looked_at: Callable[[str, Quads], None] = lambda _stage, _quads: None,
    ) -> None:
        self._stages, self._networks, self._limits = stages, networks, limits
        self._timed, self._looked_at = timed, looked_at

    def run(self, picture: Pixels, caller: Caller = ANYBODY) -> Tensors:
        """The answer to a decoded picture, upright, (height, width, 3) RGB, with a batch dimension of 1.

        ``caller`` is who waits for it. Raises ``NobodyWaits``, ``NetworkFailed``, and ``BadImage`` where a stage cannot
        be applied to a picture of this size or memory is short.
        """
        found: dict[str, _Found] = {}
        left_out: set[int] = set()
        try:
            for stage in self._stages:
                if stage.definition.region is None:
                    found[stage.name] = self._find(stage, picture, caller)
                else:
                    chosen = self._chosen(stage, picture, found, left_out)
                    found[stage.name] = self._look_at(stage, picture, chosen, left_out, caller)
        except MemoryError:
            raise OutOfMemory(f"too little memory is free for the regions of a picture{MAY_BE_SENT_AGAIN}") from None
        return self._answer(found, len(left_out))

    def _find(self, stage: OpenStage, picture: Pixels, caller: Caller) -> _Found:
        """Run the first stage: the picture is its sample."""
        with self._timed(f"{stage.name}_preprocess"):
            sample = stage.from_picture.run(picture)
        (found,) = self._results(stage, [sample], caller, [(picture.shape[0], picture.shape[1])])
        tensors = {name: value if name == IMAGE_SIZE else value[0] for name, value in found.items()}
        quads = tensors[QUADS] if QUADS in tensors else quads_of(tensors[BOXES])
        return _Found(np.arange(len(quads)), quads, tensors)

    def _chosen(self, stage: OpenStage, picture: Pixels, found: Mapping[str, _Found], left_out: set[int]) -> _Found:
        """The regions that a stage takes, without tensors of its own; those that a limit leaves out are told."""
        region = stage.definition.region
        assert region is not None
        earlier = found[region.of]
        first = found[self._stages[0].name].tensors
        said = {name: first[name][earlier.places] for name in (SCORES, CLASS_IDS, LABELS) if name in first}
        chosen = choose(
            stage.definition,
            earlier.quads,
            (picture.shape[0], picture.shape[1]),
            limits=self._limits,
            scores=said.get(SCORES),
            class_ids=said.get(CLASS_IDS),
            labels=said.get(LABELS),
        )
        left_out.update(earlier.places[chosen.left_out].tolist())
        return _Found(earlier.places[chosen.indices], chosen.quads, {})

    def _look_at(self, stage: OpenStage, picture: Pixels, chosen: _Found, left_out: set[int], caller: Caller) -> _Found:
        """Run a later stage on its regions, a few at a time; those stay of which it gives what it keeps."""
        rows: list[Tensors] = []
        kept: list[int] = []
        for start in range(0, len(chosen.quads), _CHUNK):
            if not caller.is_waiting():
                raise NobodyWaits
            with self._timed(f"{stage.name}_preprocess"):
                samples = stage.from_picture.run(picture, chosen.quads[start : start + _CHUNK])
            good: list[Pixels] = []
            numbers: list[int] = []
            for number, sample in enumerate(samples, start):
                if isinstance(sample, OutOfMemory):
                    raise sample
                if isinstance(sample, BadImage):
                    # Resized by this definition it would be larger than a picture may be.
                    left_out.add(int(chosen.places[number]))
                else:
                    good.append(sample)
                    numbers.append(number)
            for number, row in zip(numbers, self._results(stage, good, caller), strict=True):
                if stage.keeps(row):
                    rows.append(row)
                    kept.append(number)
        self._looked_at(stage.name, chosen.quads)
        tensors, quads = _stacked(rows, stage.answer), chosen.quads[kept]
        if DEGREES in tensors:
            quads = turned(quads, tensors[DEGREES] // _QUARTER)
        return _Found(chosen.places[kept], quads, tensors)

    def _results(
        self, stage: OpenStage, samples: Sequence[Pixels], caller: Caller, sizes: Sequence[Size] = ()
    ) -> list[Tensors]:
        """What a stage gives of each sample, with a batch dimension of 1."""
        with self._timed(f"{stage.name}_network"):
            outputs = self._networks.run(stage.name, samples, caller)
        with self._timed(f"{stage.name}_postprocess"):
            return [stage.postprocess(one, sizes)[0] for one in outputs]

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
            if BOXES not in answer:
                answer[QUADS] = one.quads[kept][None]
        answer[LEFT_OUT] = np.array([[left_out]], np.int32)
        return answer


def _stacked(rows: Sequence[Tensors], answer: Sequence[Tensor]) -> Tensors:
    """Tensors of regions as one with a row for each; a region's single value is no dimension of its own."""
    stacked: Tensors = {}
    for tensor in answer:
        values = [row[tensor.name][0] for row in rows]
        dims = tuple(max(side, 0) for side in tensor.dims)
        table = np.stack(values) if values else np.empty((0, *dims), _DTYPES.get(tensor.dtype, tensor.dtype))
        stacked[tensor.name] = table[:, 0] if dims == (1,) else table
    return stacked
