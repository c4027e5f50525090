"""The stages of a cascade, run on pictures: what both of its forms do, each with its own networks behind it.

Every picture is decoded once, whole. A stage's pixels are made from the decoded picture, so nothing of a region is
resampled twice, and a region's result depends on nothing but the picture and the region.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby

import numpy as np
import numpy.typing as npt

from onestream.postprocess.postprocessing import Postprocess, Tensors
from onestream.preprocess import BadImage, Compiled, Definition, FromPicture, Limits
from onestream.preprocess.geometry import Quads, Size
from onestream.preprocess.headers.reader import Encoded
from onestream.preprocess.quads import choose, quads_of, turned
from onestream.serving.building.triton_config import Tensor
from onestream.wire.tensor_names import BOXES, CLASS_IDS, DEGREES, IMAGE_SIZE, LABELS, LEFT_OUT, QUADS, SCORES

Pixels = npt.NDArray[np.uint8]

_QUARTER = 90
_DTYPES = {"string": "object"}


class NetworkFailed(Exception):
    """A network gave no outputs for a sample. ``is_overload``: it may be asked again later."""

    def __init__(self, reason: str, *, is_overload: bool = False) -> None:
        super().__init__(reason)
        self.is_overload = is_overload


class Networks(ABC):
    """What runs the network of a stage."""

    @abstractmethod
    def run(self, stage: str, samples: Sequence[Pixels]) -> list[Tensors | NetworkFailed]:
        """The outputs for each sample, uint8 (height, width, channels) of any shape, with a batch dimension of 1."""

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Release what is held."""


Answer = Tensors | BadImage | NetworkFailed | None
"""What becomes of a picture; None where nobody waits for it any more."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage, ready to run.

    ``answer`` are the tensors that it gives of one region, without a batch dimension; ``keeps`` says of them, with it,
    whether the region stays. ``order`` says of regions which comes first, where their order means something.
    """

    name: str
    definition: Definition
    from_picture: FromPicture
    postprocess: Postprocess
    answer: tuple[Tensor, ...]
    keeps: Callable[[Tensors], bool] = lambda _: True
    order: Callable[[Quads], npt.NDArray[np.int64]] | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    """The regions that a stage gave: their places among those of the first stage, their corners, its tensors.

    The tensors have a row for each region, without a batch dimension.
    """

    places: npt.NDArray[np.int64]
    quads: Quads
    tensors: Tensors


@dataclass(slots=True)
class _Picture:
    """A picture on its way through the stages, and what each gave of it so far."""

    index: int
    pixels: Pixels
    found: dict[str, _Found] = field(default_factory=dict)
    left_out: int = 0
    failure: BadImage | NetworkFailed | None = None


class Stages:
    """A cascade on the CPU, but for its networks.

    Args:
        decoder: gives whole pictures, as ``definition.stage("decode")`` does.
        stages: in their order.
        networks: run what the stages ask.
        limits: of which ``max_regions`` of a picture go on to a later stage.
        chunk: regions whose pixels are in memory at once.
        timed: counts the time of its block under a step's name.
        counted: called with a stage's name and the number of regions that it has worked on.
        alive: called between chunks.
    """

    def __init__(
        self,
        decoder: Compiled,
        stages: Sequence[Stage],
        networks: Networks,
        *,
        limits: Limits,
        chunk: int,
        timed: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
        counted: Callable[[str, int], None] = lambda _stage, _regions: None,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._decoder, self._stages, self._networks = decoder, stages, networks
        self._limits, self._chunk = limits, chunk
        self._timed, self._counted, self._alive = timed, counted, alive

    def run(self, images: Sequence[Encoded], is_wanted: Callable[[int], bool] = lambda _: True) -> list[Answer]:
        """The answer to each image, or why there is none; what is wrong with one image changes nothing of others.

        ``is_wanted`` says whether somebody still waits for the answer to the image of an index; None where nobody did.
        """
        with self._timed("decode"):
            decoded = self._decoder.run(images)
        good = [index for index, one in enumerate(decoded) if not isinstance(one, BadImage)]
        answers: list[Answer] = [one if isinstance(one, BadImage) else None for one in decoded]
        pictures = [one for one in decoded if not isinstance(one, BadImage)]
        for index, answer in zip(good, self.run_decoded(pictures, lambda at: is_wanted(good[at])), strict=True):
            answers[index] = answer
        return answers

    def run_decoded(self, images: Sequence[Pixels], is_wanted: Callable[[int], bool] = lambda _: True) -> list[Answer]:
        """The same of pictures that are decoded already, upright, (height, width, 3) RGB."""
        answers: list[Answer] = [None] * len(images)
        pictures = [_Picture(index, image) for index, image in enumerate(images)]
        for stage in self._stages:
            pictures = [picture for picture in pictures if picture.failure is None and is_wanted(picture.index)]
            if stage.definition.region is None:
                self._find(stage, pictures)
            else:
                self._look_at_regions(stage, pictures)
            for picture in pictures:
                answers[picture.index] = picture.failure
        for picture in pictures:
            if picture.failure is None:
                answers[picture.index] = self._answer(picture)
        return answers

    def _find(self, stage: Stage, pictures: Sequence[_Picture]) -> None:
        """Run the first stage: every picture is one sample."""
        for picture in pictures:
            try:
                with self._timed(f"{stage.name}_preprocess"):
                    sample = stage.from_picture.run(picture.pixels)
            except BadImage as error:
                picture.failure = error.as_result()
                continue
            size_hw = (picture.pixels.shape[0], picture.pixels.shape[1])
            (found,) = self._results(stage, [(picture, sample)], [size_hw])
            if found is None:
                continue
            tensors = {name: value if name == IMAGE_SIZE else value[0] for name, value in found.items()}
            quads = tensors[QUADS] if QUADS in tensors else quads_of(tensors[BOXES])
            picture.found[stage.name] = _Found(np.arange(len(quads)), quads, tensors)

    def _look_at_regions(self, stage: Stage, pictures: Sequence[_Picture]) -> None:
        """Run a later stage on the regions of all pictures, a chunk at a time."""
        chosen = {picture.index: self._chosen(stage, picture) for picture in pictures}
        results: dict[int, list[Tensors | None]] = {index: [] for index in chosen}
        regions = [(picture, row) for picture in pictures for row in range(len(chosen[picture.index].quads))]
        for start in range(0, len(regions), self._chunk):
            chunk = [region for region in regions[start : start + self._chunk] if region[0].failure is None]
            with self._timed(f"{stage.name}_preprocess"):
                samples = [
                    (picture, sample)
                    for picture, its in groupby(chunk, lambda region: region[0])
                    for sample in stage.from_picture.run(
                        picture.pixels, chosen[picture.index].quads[[row for _, row in its]]
                    )
                ]
            for (picture, _), tensors in zip(samples, self._results(stage, samples), strict=True):
                results[picture.index].append(tensors)
        for picture in pictures:
            if picture.failure is None:
                self._counted(stage.name, len(results[picture.index]))
                picture.found[stage.name] = _seen(stage, chosen[picture.index], results[picture.index])

    def _chosen(self, stage: Stage, picture: _Picture) -> _Found:
        """The regions that a stage takes of a picture, without tensors of its own."""
        region = stage.definition.region
        assert region is not None
        earlier = picture.found[region.of]
        first = picture.found[self._stages[0].name].tensors
        said = {name: first[name][earlier.places] for name in (SCORES, CLASS_IDS, LABELS) if name in first}
        chosen = choose(
            stage.definition,
            earlier.quads,
            (picture.pixels.shape[0], picture.pixels.shape[1]),
            limits=self._limits,
            scores=said.get(SCORES),
            class_ids=said.get(CLASS_IDS),
            labels=said.get(LABELS),
        )
        picture.left_out = max(picture.left_out, chosen.left_out)
        return _Found(earlier.places[chosen.indices], chosen.quads, {})

    def _results(
        self, stage: Stage, samples: Sequence[tuple[_Picture, Pixels | BadImage]], sizes: Sequence[Size] = ()
    ) -> list[Tensors | None]:
        """What a stage gives of each sample, with a batch dimension of 1.

        None where the region cannot be made a sample, or its picture has failed.
        """
        self._alive()
        good = [sample for _, sample in samples if not isinstance(sample, BadImage)]
        with self._timed(f"{stage.name}_network"):
            outputs = iter(self._networks.run(stage.name, good))
        results: list[Tensors | None] = []
        with self._timed(f"{stage.name}_postprocess"):
            for picture, sample in samples:
                one = None if isinstance(sample, BadImage) else next(outputs)
                if isinstance(one, NetworkFailed):
                    picture.failure, one = one, None
                results.append(None if one is None else stage.postprocess(one, sizes)[0])
        return results

    def _answer(self, picture: _Picture) -> Tensors:
        """Of every stage the rows of the regions that went through all of them."""
        found = list(picture.found.values())
        places = reduce(np.intersect1d, (one.places for one in found))
        order = self._stages[0].order
        if order is not None:
            # A page that lies on its side, or upside down, is known for that only now.
            places = places[order(found[-1].quads[np.isin(found[-1].places, places)])]
        answer: Tensors = {}
        for stage, one in zip(self._stages, found, strict=True):
            kept = np.searchsorted(one.places, places)
            is_last = stage is self._stages[-1]
            for name, value in one.tensors.items():
                if name == IMAGE_SIZE:
                    answer[name] = value
                elif name == BOXES:
                    answer[name] = value[kept][None]
                elif name != QUADS:
                    answer[name if is_last else f"{stage.name}_{name}"] = value[kept][None]
            if BOXES not in answer:
                answer[QUADS] = one.quads[kept][None]
        answer[LEFT_OUT] = np.array([[picture.left_out]], np.int32)
        return answer


def _seen(stage: Stage, chosen: _Found, results: Sequence[Tensors | None]) -> _Found:
    """The regions that stay of those that a stage took, with what it gave of them, turned where it says so."""
    given = [one if one is not None and stage.keeps(one) else None for one in results]
    kept = np.array([one is not None for one in given], bool)
    tensors = _stacked([one for one in given if one is not None], stage.answer)
    quads = chosen.quads[kept]
    if DEGREES in tensors:
        quads = turned(quads, tensors[DEGREES] // _QUARTER)
    return _Found(chosen.places[kept], quads, tensors)


def _stacked(rows: Sequence[Tensors], answer: Sequence[Tensor]) -> Tensors:
    """Tensors of regions as one with a row for each; a region's single value is no dimension of its own."""
    stacked: Tensors = {}
    for tensor in answer:
        values = [row[tensor.name][0] for row in rows]
        dims = tuple(max(side, 0) for side in tensor.dims)
        table = np.stack(values) if values else np.empty((0, *dims), _DTYPES.get(tensor.dtype, tensor.dtype))
        stacked[tensor.name] = table[:, 0] if dims == (1,) else table
    return stacked
