"""Finds the setting for a network in int8: by measured agreement with float32, then by time on this machine."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from onestream.postprocess.agreement import Agreement
from onestream.postprocess.kinds import Opening, Tensors
from onestream.preprocess.user_files import read_bounded
from onestream.serving.building.quantization.calibration import Calibration
from onestream.serving.building.quantization.pictures import Sample, Split
from onestream.serving.building.quantization.quantize import Quantizable, told_as_bad_network
from onestream.serving.built.here import medians_ms
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.engine import served as served_network
from onestream.serving.engine.quantization import (
    ForTensorRt,
    Quantization,
    Ranges,
    Settings,
    Speed,
    Tried,
    Weights,
    this_processor,
)
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.pipeline import Pipeline
from onestream.wire.tensor_names import CLASS_IDS

_MOST_LABEL_BYTES = 1 << 26
"""Of a file of labels; a million of pictures take some 30 MB."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The class of each picture, by the name of its file; ``sha256`` is of the labels file."""

    classes: Mapping[str, int]
    sha256: str

    @classmethod
    def read(cls, file: Path, names: Sequence[str] | None) -> Truth:
        """From a CSV file without a heading: the picture's file name, and its class as one of ``names`` or a number.

        Raises ``BadPipeline`` naming the line.
        """
        try:
            content = read_bounded(file, _MOST_LABEL_BYTES)
            rows = list(csv.reader(content.decode("utf-8-sig").splitlines()))
        except OSError as error:
            raise BadPipeline(f"{file}: {error.strerror or error}; expected a file of labels") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise BadPipeline(f"{file}: no CSV in UTF-8: {error}") from None
        ids = {name: number for number, name in enumerate(names or ())}
        found: dict[str, int] = {}
        for line, row in enumerate(rows, start=1):
            if not row:
                continue
            if len(row) != 2:
                raise BadPipeline(f"{file} line {line}: expected PICTURE,CLASS, got {','.join(row)[:80]!r}")
            picture, label = (cell.strip() for cell in row)
            number = ids.get(label)
            if number is None and re.fullmatch(r"\d{1,18}", label, re.ASCII):
                number = int(label)
            if number is None:
                raise BadPipeline(f"{file} line {line}: {label[:80]!r} is no class of the network, and no number")
            if names is not None and number >= len(names):
                raise BadPipeline(f"{file} line {line}: class {number}; the network has 0 to {len(names) - 1}")
            if found.setdefault(picture, number) != number:
                raise BadPipeline(
                    f"{file} line {line}: {picture[:80]!r} has another class before; pictures are told apart by their "
                    "file names, without folders"
                )
        return cls(found, hashlib.sha256(content).hexdigest())


_WEIGHTS: tuple[Weights, ...] = ("per_channel", "per_tensor")
_TENSORRT_WEIGHTS: tuple[Weights, ...] = ("per_channel",)
_RANGES: tuple[Ranges, ...] = ("minmax", "percentile", "entropy")
_TIMING_S = 15.0
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
    referee = _Referee(pipeline, served, split.held_out, labels, calibration)
    network = Quantizable(served, pipeline.preprocess, [sample.pixels for sample in split.calibrated])
    search = _Search(network, network.for_cpu, referee, progress)
    search.run(_WEIGHTS, calibration.min_agreement)
    progress("timing what was found")
    threads = pipeline.serving.cpu_threads
    pixels = split.held_out[0].pixels[None]
    engines = [candidate.engine for candidate in search.candidates]
    float_ms, *times = medians_ms([referee.engine, *engines], pixels, budget_s=_TIMING_S)
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
        agreement=chosen.agreement,
        speed=Speed(
            float32_ms=round(float_ms, 3),
            int8_ms=round(times[best], 3),
            threads=threads,
            pixels=(pixels.shape[1], pixels.shape[2], pixels.shape[3]),
            processor=this_processor(),
        ),
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
    network: Quantizable, referee: _Referee, calibration: Calibration, progress: Callable[[str], None]
) -> tuple[_Candidate | None, str]:
    """The network for TensorRT that agrees best, as ONNX Runtime computes it; how fast it is, only a GPU can say.

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


class _Referee:
    """Knows what float32 answers to the pictures that were held out, and how far another network agrees."""

    def __init__(
        self,
        pipeline: Pipeline,
        served: onnx.ModelProto,
        held_out: Sequence[Sample],
        labels: Sequence[str] | None,
        calibration: Calibration,
    ) -> None:
        self._threads = pipeline.serving.cpu_threads
        self._held_out = held_out
        self._options = pipeline.postprocess.suited_to(served_network.outputs(served))
        self._postprocess = self._options.open_compared(Opening(pipeline.preprocess, labels))
        self._truth = None if calibration.labels is None else self._read(calibration.labels, pipeline, labels)
        self.engine = self.open(served)
        self._expected = self._answers(self.engine)
        self._check_answers()

    @property
    def labels_sha256(self) -> str | None:
        """Of the labels file, where there is one."""
        return None if self._truth is None else self._truth.sha256

    def open(self, network: onnx.ModelProto) -> OnnxRuntimeEngine:
        """As the server runs it."""
        return OnnxRuntimeEngine(network.SerializeToString(), threads=self._threads)

    def candidate(self, settings: Settings, network: onnx.ModelProto) -> _Candidate:
        """A network in int8, with its agreement. Raises ``BadNetwork`` where ONNX Runtime cannot run it."""
        with told_as_bad_network("be run in int8"):
            engine = self.open(network)
            got = self._answers(engine)
        return _Candidate(settings, network, engine, self._agreement(got))

    def _agreement(self, got: Sequence[Tensors]) -> Agreement:
        found = self._options.agreement(list(zip(self._expected, got, strict=True)))
        if self._truth is None:
            return found
        before, after = (self._accuracy(answers) for answers in (self._expected, got))
        return found.model_copy(
            update={
                "measure": "accuracy of int8 by accuracy of float32",
                "share": round(min(after / before, 1.0), 6),
                "of": sum(sample.name in self._truth.classes for sample in self._held_out),
                "accuracy": {"float32": round(before, 6), "int8": round(after, 6)},
            }
        )

    def _answers(self, engine: OnnxRuntimeEngine) -> list[Tensors]:
        return [self._postprocess(engine.run(one.pixels[None]), [one.size_hw])[0] for one in self._held_out]

    def _accuracy(self, answers: Sequence[Tensors]) -> float:
        assert self._truth is not None
        known = self._truth.classes
        right = [
            int(answer[CLASS_IDS].ravel()[0]) == known[sample.name]
            for sample, answer in zip(self._held_out, answers, strict=True)
            if sample.name in known
        ]
        return float(np.mean(right)) if right else 0.0

    def _read(self, file: Path, pipeline: Pipeline, labels: Sequence[str] | None) -> Truth:
        if not pipeline.postprocess.ranks_classes:
            raise BadPipeline(f"labels are for a classification; the pipeline ends in {pipeline.postprocess.kind}")
        return Truth.read(file, labels)

    def _check_answers(self) -> None:
        if self._truth is not None and self._accuracy(self._expected) == 0:
            raise BadPipeline(
                f"float32 names the right class of none of the {len(self._held_out)} pictures that are held out, so "
                "there is nothing to compare int8 with: check the names and classes in the file of labels"
            )
        itself = self._options.agreement([(answer, answer) for answer in self._expected])
        # A share that is not a number is not below 1 either.
        if not itself.share >= 1:
            raise BadPipeline(
                f"float32 finds nothing in the {len(self._held_out)} pictures that are held out, so there is nothing "
                "to compare int8 with: calibrate with pictures that show what the network finds"
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    settings: Settings
    network: onnx.ModelProto
    engine: OnnxRuntimeEngine
    agreement: Agreement


class _Search:
    """Tries settings: weights and ranges; layers in float32 at the ends where agreement is not complete, and elsewhere
    where it is too little.
    """

    def __init__(
        self,
        network: Quantizable,
        quantized: Callable[[Settings], onnx.ModelProto],
        referee: _Referee,
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
            candidate = self._referee.candidate(settings, self._quantized(settings))
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
