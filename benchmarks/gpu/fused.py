"""The fused form in process, against the decoding and the network that it is made of, each alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx

from benchmarks.gpu.agreement import check_answers, refuse
from benchmarks.gpu.measure import Batch, Lanes, Photos, Workload, reason
from benchmarks.gpu.results import Agreement, Part, Rate, Steps
from benchmarks.gpu.setup import Setup
from onestream.measure.agreement import Disagreement
from onestream.preprocess.cuda.device import Device
from onestream.preprocess.cuda.step_timer import StepTimer
from onestream.preprocess.errors import BackendMissing
from onestream.serving.engine import DeviceEngine, open_engine
from onestream.serving.errors import BadPlan
from onestream.serving.graph.onnx_postprocess import with_postprocess
from onestream.serving.models.one_stream import OneStream, open_source
from onestream.serving.pipeline import GpuOptions
from onestream.wire.tensor_names import CLASS_IDS

PRECISIONS: tuple[Literal["fp32", "tf32", "fp16"], ...] = ("fp32", "tf32", "fp16")
IN_FLIGHT = (1, 2, 3)
_LANES = max(IN_FLIGHT)
_STEP_BATCHES = 20
_MOST_DECODE_THREADS = 64


def measure_fused(setup: Setup, opened: ExitStack) -> tuple[str | None, list[Agreement], list[Rate], list[Steps]]:
    """What runs the network, what agrees with it on the CPU, images per second, and times by step.

    ``opened`` closes what is opened.
    """
    if setup.network is None:
        setup.missing["fused"] = "the network is not built; run: onestream build"
        return None, [], [], []
    bench = _Bench(setup, setup.network, opened)
    bench.open_all()
    return bench.engine, bench.agreement, bench.rates(), bench.steps()


class _Bench:
    """The parts that could be opened, and what agreed."""

    def __init__(self, setup: Setup, network: Path, opened: ExitStack) -> None:
        self._setup, self._opened = setup, opened
        self._batch = setup.plan.fused_batch
        options = setup.pipeline.serving.gpu
        threads = min(_MOST_DECODE_THREADS, max(options.decode_threads, setup.cores // _LANES))
        self._options = options.model_copy(update={"max_batch_size": self._batch, "decode_threads": threads})
        with_tail = with_postprocess(onnx.load(network), setup.pipeline.postprocess)
        self._network: bytes = with_tail.SerializeToString(deterministic=True)
        self._parts: list[tuple[Part, str, Lanes[Any], Callable[[Any, Batch], None]]] = []
        self.engine: str | None = None
        self.agreement: list[Agreement] = []

    def open_all(self) -> None:
        """Open decoding, and for each precision the network and the fused form; what agrees with the CPU is kept."""
        try:
            decoding = self._lanes(lambda: _Decoding(self._setup, self._options))
        except Exception as error:  # a backend that is missing here, or a driver's error
            self._setup.missing["decode alone"] = reason(error)
        else:
            name = f"{self._options.backend}, decode {self._options.decode}"
            self._parts.append(("decode alone", name, decoding, _decode))
        for precision in PRECISIONS:
            try:
                self._open(precision)
            except Exception as error:  # no engine, another best class: the other precision is still measured
                self._setup.missing[f"fused: {precision}"] = reason(error)

    def rates(self) -> list[Rate]:
        """Images per second of everything that was opened."""
        # The network alone reads no photos, so it is measured once for all sizes.
        points = [
            Workload(part, setting, lanes, run, photos, self._batch, in_flight)
            for photos in (None, *self._setup.photos)
            for part, setting, lanes, run in self._parts
            if (photos is None) == (part == "network alone")
            for in_flight in IN_FLIGHT
        ]
        return self._setup.measure("fused", points)

    def steps(self) -> list[Steps]:
        """GPU time by step and host waits of fused batches, of which each begins when the one before is done."""
        found = []
        for part, precision, lanes, _ in self._parts:
            if part != "fused" or f"fused: {precision}" in self._setup.missing:
                continue
            try:
                found += [self._steps(precision, lanes, photos) for photos in self._setup.photos]
            except Exception as error:  # the rates were measured all the same
                self._setup.missing[f"steps: {precision}"] = reason(error)
        return found

    def _open(self, precision: Literal["fp32", "tf32", "fp16"]) -> None:
        setup, options = self._setup, self._options.model_copy(update={"precision": precision})
        setup.progress(f"network, {precision}: opening, which can build a plan first")
        engine, self.engine = _open_engine(self._network, options, setup.device, setup.progress)
        self._opened.callback(engine.close)
        network = self._lanes(lambda: _Alone(engine, setup.device))
        self._parts.append(("network alone", precision, network, _run_network))
        definition, limits = setup.pipeline.preprocess, setup.pipeline.limits
        fused = self._lanes(lambda: OneStream(definition, limits, engine, device=setup.device, options=options))
        for one in setup.expected:
            if one.scores is None:
                raise Disagreement("cannot be compared with the CPU: ONNX Runtime is not installed")
            best = fused.ask(partial(_best, photos=one.photos, at_once=self._batch))
            self.agreement.append(check_answers(precision, best, one))
            refuse(self.agreement[-1])
        self._parts.append(("fused", precision, fused, _run_fused))

    def _steps(self, precision: str, lanes: Lanes[OneStream], photos: Photos) -> Steps:
        before = self._setup.device.syncs
        times = [lanes.ask(partial(_step_ms, images=photos.pick(self._batch))) for _ in range(_STEP_BATCHES)]
        return Steps(
            precision=precision,
            size=photos.size,
            batch=self._batch,
            batches=_STEP_BATCHES,
            milliseconds={step: round(float(np.median([one[step] for one in times])), 4) for step in times[0]},
            waits=(self._setup.device.syncs - before) / _STEP_BATCHES,
        )

    def _lanes(self, open_state: Callable[[], Any]) -> Lanes[Any]:
        lanes = Lanes(_LANES, open_state, device=self._setup.device)
        self._opened.callback(lanes.close)
        return lanes


class _Decoding:
    """Decoding and resizing as the fused form does them, into memory like the network's input."""

    def __init__(self, setup: Setup, options: GpuOptions) -> None:
        definition = setup.pipeline.preprocess
        height, width = definition.output_spec.size_hw
        assert height is not None
        assert width is not None
        self.stream = setup.device.stream()
        shape = (options.max_batch_size, height, width, definition.output_spec.channels)
        self.timer = StepTimer(self.stream)
        self.source = open_source(
            definition,
            setup.pipeline.limits,
            options=options,
            stream=self.stream,
            target=self.stream.allocate(shape, np.uint8),
            timer=self.timer,
        )


class _Alone:
    """The network on rows that are there already."""

    def __init__(self, engine: DeviceEngine, device: Device) -> None:
        self.stream = device.stream()
        self.session = engine.open(self.stream)
        self.stream.fill(self.session.input, 127)
        self.stream.sync()


def _decode(state: _Decoding, images: Batch) -> None:
    state.timer.start()
    bad = state.source.fill(images).bad
    state.stream.sync()
    for error in bad.values():
        raise error


def _run_network(state: _Alone, rows: Batch) -> None:
    state.session.enqueue(len(rows))
    state.stream.sync()


def _run_fused(stream: OneStream, images: Batch) -> None:
    for error in stream.run(images).bad.values():
        raise error


def _step_ms(stream: OneStream, *, images: Batch) -> dict[str, float]:
    return stream.run(images).step_ms


def _best(stream: OneStream, *, photos: Batch, at_once: int) -> npt.NDArray[Any]:
    """Best class of each photo."""
    best = []
    for first in range(0, len(photos), at_once):
        result = stream.run(photos[first : first + at_once])
        for error in result.bad.values():
            raise error
        best.append(result.outputs[CLASS_IDS][:, 0])
    return np.concatenate(best)


def _open_engine(
    model: bytes, options: GpuOptions, device: Device, progress: Callable[[str], None]
) -> tuple[DeviceEngine, str]:
    """The engine that the options ask for, else ONNX Runtime, else PyTorch, and which one it is."""
    try:
        return open_engine(model, options=options, device=device, progress=progress), options.engine
    except (BackendMissing, BadPlan) as missing:
        instead = options.model_copy(update={"engine": "onnxruntime"})
        try:
            return open_engine(model, options=instead, device=device, progress=progress), instead.engine
        except BackendMissing as also:
            if options.precision != "fp32":
                raise BackendMissing(f"{missing}; {also}") from None
            return _torch_engine(model, options, device, why=f"{missing}; {also}"), "PyTorch, operator by operator"


def _torch_engine(model: bytes, options: GpuOptions, device: Device, *, why: str) -> DeviceEngine:
    try:
        from benchmarks.gpu.torch_engine import TorchEngine

        return TorchEngine(model, device, max_batch_size=options.max_batch_size)
    except (ImportError, AssertionError, RuntimeError) as error:  # no PyTorch, or one without CUDA
        raise BackendMissing(f"{why}; PyTorch: {(str(error).splitlines() or [type(error).__name__])[0]}") from None
