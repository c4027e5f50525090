"""The samples of a cascade's later stage: regions of pictures, as the stages before it find them in float32."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import onnx

from onestream.postprocess.kinds import Opening, Tensors
from onestream.postprocess.labels import names_in
from onestream.preprocess import WHOLE_PICTURE, BadImage, Definition, Limits, compile, compile_from_picture
from onestream.serving.building.cascade_repository import PreparedStage, stage_answer
from onestream.serving.building.quantization.pictures import LEAST, Sample, Split, contents
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.errors import BadPipeline
from onestream.serving.models.deadline import Caller
from onestream.serving.models.stage_runners import Networks, Pixels, samples_by
from onestream.serving.models.stages import OpenStage, Stages
from onestream.wire.tensor_names import PIXELS

_MOST = 256
"""Samples of either side: more tell nothing new, and reading one takes as long as classifying ten."""


@dataclass(frozen=True, slots=True, eq=False)
class FloatStage:
    """A stage, and its network in float32."""

    prepared: PreparedStage
    network: onnx.ModelProto

    def open(self) -> OpenStage:
        """The stage, but for what makes its samples."""
        one, options = self.prepared, self.prepared.pipeline.postprocess
        names = None if one.labels is None else names_in(one.labels)
        return OpenStage(
            one.name,
            one.definition,
            options.open(Opening(one.definition, labels=names)),
            stage_answer(one),
            options.keeps,
            options.order,
        )


def split_of_stage(stages: Sequence[FloatStage], files: Sequence[Path], limits: Limits) -> Split:
    """What the last of ``stages`` takes of the pictures in files: the first regions of each, at most 16.

    Pictures are taken in the order of their digests, and each goes to the side that has fewer regions, so that none has
    regions on both. Raises ``BadPipeline`` where a
    file cannot be read, or fewer than 8 regions are found on a side.
    """
    recorder = _Recorder({one.prepared.name: one.network for one in stages[:-1]})
    runner = Stages(
        [one.open() for one in stages],
        recorder,
        lambda stage: samples_by(compile_from_picture(stage.definition.pixels(), limits=limits)),
        limits=limits,
    )
    decoder = compile(WHOLE_PICTURE, limits=limits)
    sides: tuple[list[Sample], list[Sample]] = ([], [])
    found, too_large = contents(files, limits)
    refused, taken, shows = len(too_large), 0, 0
    for sha256, (name, content) in sorted(found.items()):
        (picture,) = decoder.run([content])
        if isinstance(picture, BadImage):
            refused += 1
            continue
        taken += 1
        # The side that has fewer: pictures show none, or many.
        side = min(sides, key=len)
        if len(side) >= _MOST:
            continue
        regions = recorder.regions(runner, picture)
        shows += bool(regions)
        for number, pixels in enumerate(regions):
            side.append(Sample(f"{name}#{number}", f"{sha256}#{number}", pixels, (pixels.shape[0], pixels.shape[1])))
    calibrated, held_out = (tuple(side[:_MOST]) for side in sides)
    if min(len(calibrated), len(held_out)) < LEAST:
        raise BadPipeline(_too_few(stages[-1].prepared.definition, taken, shows, len(calibrated), len(held_out)))
    return Split(calibrated, held_out, refused)


def _too_few(definition: Definition, taken: int, shows: int, calibrated: int, held_out: int) -> str:
    """Why the regions of so many pictures, of which so many show any, do not suffice, and what would."""
    region = definition.region
    assert region is not None
    kinds = f" of {', '.join(map(str, region.classes))}" if region.classes else ""
    found = calibrated + held_out
    needed = max(taken + 1, -(-taken * 2 * LEAST // found)) if found else 0
    more = f"Of pictures like these about {needed} are needed" if found else "Take pictures that show some"
    return (
        f"it is calibrated with the regions{kinds} that stage {region.of} finds: at least {LEAST} to calibrate and "
        f"{LEAST} to measure; these {taken} pictures have {calibrated} and {held_out}, in {shows} of them. {more}"
    )


class _Recorded(Exception):
    """A stage without a network was asked."""


class _Recorder(Networks[Pixels]):
    """Runs the networks it has, and keeps the samples that the first other one is asked for."""

    def __init__(self, networks: dict[str, onnx.ModelProto]) -> None:
        self._engines = {
            name: OnnxRuntimeEngine(network.SerializeToString(), threads=0) for name, network in networks.items()
        }
        self._samples: list[Pixels] = []

    def run(self, stage: str, samples: Sequence[Pixels], callers: Sequence[Caller]) -> list[Tensors]:  # noqa: ARG002
        """See ``Networks.run``."""
        if stage not in self._engines:
            self._record(samples)
        return [self._engines[stage].run({PIXELS: sample[None]}) for sample in samples]

    def regions(self, runner: Stages[Pixels], picture: Pixels) -> list[Pixels]:
        """The samples of a decoded picture; none where the stages cannot be applied to it."""
        self._samples = []
        with contextlib.suppress(_Recorded, BadImage):
            runner.run(picture)
        return self._samples

    def _record(self, samples: Sequence[Pixels]) -> NoReturn:
        self._samples = [np.ascontiguousarray(sample) for sample in samples]
        raise _Recorded
