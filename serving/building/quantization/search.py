"""Finds the setting for a network in int8: by measured agreement with float32, then by time on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import onnx
import onnxruntime
from onnx import helper

from onestream.postprocess.agreement import Agreement
from onestream.serving.building.quantization.calibration import Calibration
from onestream.serving.building.quantization.pictures import Split
from onestream.serving.building.quantization.quantize import Quantizable, told_as_bad_network
from onestream.serving.building.quantization.referee import TIMING_S, Referee
from onestream.serving.built.here import medians_ms
from onestream.serving.engine import CpuEngine
from onestream.serving.engine.quantization import (
    ForTensorRt,
    Quantization,
    Ranges,
    Settings,
    Tried,
    Weights,
)
from onestream.serving.errors import BadNetwork
from onestream.serving.pipeline import Pipeline

_WEIGHTS: tuple[Weights, ...] = ("per_channel", "per_tensor")
_TENSORRT_WEIGHTS: tuple[Weights, ...] = ("per_channel",)
_RANGES: tuple[Ranges, ...] = ("minmax", "percentile", "entropy")
_NOISE = 1.05
"""Medians on a busy machine differ so much for the same network."""
_PARTS = 8
_TOGETHER = (2, 3, 4)
"""Parts of the layers. With more of them in float32, int8 gains nothing."""


@dataclass(frozen=True, slots=True)
class InInt8:
    """A served network in int8; ``for_tensorrt`` is None where that was not asked for, or agrees too little."""

    network: onnx.ModelProto
    for_tensorrt: onnx.ModelProto | None


def quantize(
    pipeline: Pipeline,
    served: onnx.ModelProto,
    split: Split,
    *,
    labels: Sequence[str] | None,
    calibration: Calibration,
    for_tensorrt: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> InInt8:
    """A pipeline's served network in int8, which carries its ``Quantization`` in its metadata.

    ``split`` has its samples, ``labels`` are the names of its classes. ``for_tensorrt`` asks for the network that
    TensorRT takes, too. Raises ``BadPipeline`` where the pictures or their labels do not serve, and ``BadNetwork``
    where no setting agrees with float32 well enough, naming the one that came nearest.
    """
    referee = Referee(pipeline, served, split.held_out, labels, calibration, precision="int8")
    network = Quantizable(served, pipeline.preprocess, [sample.pixels for sample in split.calibrated])
    search = _Search(network, network.for_cpu, referee, progress)
    search.run(_WEIGHTS, calibration.min_agreement)
    progress("timing what was found")
    engines = [candidate.engine for candidate in search.candidates]
    float_ms, *times = medians_ms([referee.engine, *engines], referee.pixels, budget_s=TIMING_S)
    best = _best([candidate.agreement for candidate in search.candidates], times)
    chosen = search.candidates[best]
    if chosen.agreement.share < calibration.min_agreement:
        raise BadNetwork(_refusal(chosen, calibration.min_agreement, len(search.candidates)))
    signed, why_not = _for_tensorrt(network, referee, calibration, progress) if for_tensorrt else (None, "")
    described = Quantization(
        settings=chosen.settings,
        door=network.door,
        onnxruntime=onnxruntime.__version__,
        pictures=split.described(),
        labels_sha256=referee.labels_sha256,
        min_agreement=calibration.min_agreement,
        engine=pipeline.serving.cpu.engine,
        agreement=chosen.agreement,
        speed=referee.speed(float_ms, times[best]),
        tried=tuple(
            Tried(settings=one.settings, agreement=one.agreement, ms=round(ms, 3))
            for one, ms in zip(search.candidates, times, strict=True)
        ),
        tensorrt=None if signed is None else ForTensorRt(settings=signed.settings, agreement=signed.agreement),
        why_no_tensorrt=why_not,
    )
    agrees = signed is not None and signed.agreement.share >= calibration.min_agreement
    made = InInt8(chosen.network, signed.network if signed is not None and agrees else None)
    for each in (made.network, made.for_tensorrt):
        if each is not None:
            helper.set_model_props(each, {entry.key: entry.value for entry in each.metadata_props} | described.entry())
    return made


def _for_tensorrt(
    network: Quantizable, referee: Referee, calibration: Calibration, progress: Callable[[str], None]
) -> tuple[_Candidate | None, str]:
    """The network for TensorRT that agrees best, as the CPU's engine computes it; how fast it is, only a GPU can say.

    Or None and the reason, which is none to do without int8 on a CPU.
    """
    search = _Search(network, network.for_tensorrt, referee, lambda line: progress(f"{line}, for TensorRT"))
    try:
        search.run(_TENSORRT_WEIGHTS, calibration.min_agreement)
    except BadNetwork as error:
        return None, str(error)
    return search.best, ""


def _best(agreements: Sequence[Agreement], times_ms: Sequence[float]) -> int:
    """The place of the setting that agrees best; of several the first that is as fast as any, within the noise."""
    highest = max(agreement.rank for agreement in agreements)
    equal = [index for index, agreement in enumerate(agreements) if agreement.rank == highest]
    fastest = min(times_ms[index] for index in equal)
    return next(index for index in equal if times_ms[index] <= _NOISE * fastest)


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    settings: Settings
    network: onnx.ModelProto
    engine: CpuEngine
    agreement: Agreement


class _Search:
    """Tries settings: weights and ranges; layers in float32 at the ends where agreement is not complete, and elsewhere
    where it is too little.
    """

    def __init__(
        self,
        network: Quantizable,
        quantized: Callable[[Settings], onnx.ModelProto],
        referee: Referee,
        progress: Callable[[str], None],
    ) -> None:
        self._network, self._quantized = network, quantized
        self._referee, self._progress = referee, progress
        self.candidates: list[_Candidate] = []
        self._failure: BadNetwork | None = None

    def run(self, weights: Sequence[Weights], min_agreement: float) -> None:
        """Fill ``candidates``. Raises ``BadNetwork`` where no setting makes a network that runs."""
        for ranges, scales in product(_RANGES, weights):
            self._try(Settings(weights=scales, ranges=ranges))
        if not self.candidates and self._failure is not None:
            raise self._failure
        if self.best.agreement.share == 1:
            return
        base = self.best.settings
        first, last = self._network.layers[:1], self._network.last_layers
        for kept, layers in (("the first layer", first), ("the last layers", last), ("both ends", first + last)):
            self._try(_keeping(base, kept, layers))
        if self.best.agreement.share < min_agreement:
            self._walk(base, min_agreement)

    def _walk(self, base: Settings, min_agreement: float) -> None:
        """Leave each part of the layers in float32 by itself, then the best of these together, until it suffices."""
        layers = self._network.layers
        size = -(-len(layers) // _PARTS)
        parts = [(first, layers[first : first + size]) for first in range(0, len(layers), size)]
        alone = [self._try(_keeping(base, _numbered([part], len(layers)), part[1])) for part in parts]
        made = [(part, one.agreement) for part, one in zip(parts, alone, strict=True) if one is not None]
        best_first = sorted(made, key=lambda one: (*one[1].rank, -one[1].mean_change))[::-1]
        for count in _TOGETHER:
            if self.best.agreement.share >= min_agreement or count >= len(made):
                return
            chosen = sorted(part for part, _ in best_first[:count])
            together = [layer for _, part in chosen for layer in part]
            self._try(_keeping(base, _numbered(chosen, len(layers)), together))

    @property
    def best(self) -> _Candidate:
        """The one that agrees best, of equal ones the first."""
        return max(self.candidates, key=lambda candidate: candidate.agreement.rank)

    def _try(self, settings: Settings) -> _Candidate | None:
        """One more candidate, or None: a setting that does not work for a network ends none of the others."""
        self._progress(f"trying int8: {settings}")
        try:
            network = self._quantized(settings)
            with told_as_bad_network("be run in int8"):
                engine = self._referee.open(network)
                candidate = _Candidate(settings, network, engine, self._referee.agreement(engine))
        except BadNetwork as error:
            self._failure = error
            return None
        self.candidates.append(candidate)
        return candidate


def _keeping(base: Settings, kept: str, layers: Sequence[str]) -> Settings:
    return base.model_copy(update={"kept": kept, "kept_layers": tuple(layers)})


def _numbered(parts: Sequence[tuple[int, list[str]]], count: int) -> str:
    """In words, such as *layers 1-7 and 15-21 of 53*."""
    spans = [f"{first + 1}-{first + len(layers)}" for first, layers in parts]
    return f"layers {' and '.join(spans)} of {count}"


def _refusal(nearest: _Candidate, min_agreement: float, tried: int) -> str:
    return (
        f"int8 would cost too much: {nearest.agreement}, and min_agreement is "
        f"{min_agreement:g}. The nearest of {tried} settings was {nearest.settings}. Nothing was installed; serve it "
        "in float32, or calibrate with more pictures like those that will be served"
    )
