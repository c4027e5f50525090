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
from benchmarks.gpu.results import Kept, Part, Steps
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
_DECODING_SHARE = 0.4


def measure_fused(setup: Setup, opened: ExitStack, kept: Kept) -> None:
    """Keep what runs the network, what agrees with it on the CPU, images per second, and times by step.

    ``opened`` closes what is opened.
    """
    if setup.network is None:
        setup.missing["fused"] = "the network is not built; run: onestream build"
        return
    bench = _Bench(setup, setup.network, opened, kept)
    # Before there is a network, which can end the process.
    bench.open_decoding()
    bench.rates(share=_DECODING_SHARE)
    bench.open_networks()
    bench.rates()
    bench.steps()


def thread_counts(cores: int, served: int) -> tuple[int, ...]:
    """Threads of a decoder that are compared: what is served by default, and what keeps more of the cores busy."""
    return (served, *(count for count in (2, 8, 16) if count != served and count <= max(2, cores // 2)))


class _Bench:
    """The parts that could be opened, and what agreed."""

    def __init__(self, setup: Setup, network: Path, opened: ExitStack, kept: Kept) -> None:
        self._setup, self._opened, self._kept = setup, opened, kept
        self._batches = setup.plan.fused_batches
        self._options = setup.pipeline.serving.gpu.model_copy(update={"max_batch_size": max(self._batches)})
        self._threads = thread_counts(setup.cores, self._options.threads_for(setup.cores))
        with_tail = with_postprocess(onnx.load(network), setup.pipeline.postprocess)
        self._network: bytes = with_tail.SerializeToString(deterministic=True)
        self._parts: list[tuple[Part, str, int | None, Lanes[Any], Callable[[Any, Batch], None]]] = []
        self._measured = 0

    def open_decoding(self) -> None:
        """Open decoding alone, by numbers of threads."""
        for threads in self._threads:
            try:
                decoding = self._lanes(partial(_Decoding, self._setup, self._with(threads)))
            except Exception as error:  # a backend that is missing here, or a driver's error
                self._setup.missing["decode alone"] = reason(error)
            else:
                name = f"{self._options.backend}, decode {self._options.decode}"
                self._parts.append(("decode alone", name, threads, decoding, _decode))

    def open_networks(self) -> None:
        """Open for each precision the network and the fused form; what agrees with the CPU is kept."""
        for precision in PRECISIONS:
            try:
                self._open(precision)
            except Exception as error:  # no engine, another best class: the other precision is still measured
                self._setup.missing[f"fused: {precision}"] = reason(error)

    def rates(self, *, share: float = 1.0) -> None:
        """Keep images per second of what was opened since the last call, in this share of the part's time."""
        parts, self._measured = self._parts[self._measured :], len(self._parts)
        # The network alone reads no photos, so it is measured once for all sizes.
        points = [
            Workload(part, setting, lanes, run, photos, batch, in_flight, decode_threads=threads)
            for photos in (None, *self._setup.photos)
            for batch in self._batches
            for part, setting, threads, lanes, run in parts
            if (photos is None) == (part == "network alone")
            for in_flight in IN_FLIGHT
        ]
        self._setup.measure("fused", points, self._kept, share=share)

    def steps(self) -> None:
        """Keep GPU time by step and host waits of fused batches, each begun when the one before is done."""
        for part, precision, threads, lanes, _ in self._parts:
            if part != "fused" or threads != self._threads[0] or f"fused: {precision}" in self._setup.missing:
                continue
            try:
                for photos in self._setup.photos:
                    self._kept.add(steps=[self._steps(precision, lanes, photos)])
            except Exception as error:  # the rates were measured all the same
                self._setup.missing[f"steps: {precision}"] = reason(error)

    def _open(self, precision: Literal["fp32", "tf32", "fp16"]) -> None:
        setup, options = self._setup, self._options.model_copy(update={"precision": precision})
        setup.progress(f"network, {precision}: opening, which can build a plan first")
        engine, name = _open_engine(self._network, options, setup.device, setup.progress)
        self._opened.callback(engine.close)
        self._kept.add(engine=name)
        network = self._lanes(lambda: _Alone(engine, setup.device))
        self._parts.append(("network alone", precision, None, network, _run_network))
        definition, limits = setup.pipeline.preprocess, setup.pipeline.limits
        for threads in self._threads:
            served = options.model_copy(update={"decode_threads": threads})
            fused = self._lanes(partial(OneStream, definition, limits, engine, device=setup.device, options=served))
            if threads == self._threads[0]:
                self._compare(precision, fused)
            self._parts.append(("fused", precision, threads, fused, _run_fused))

    def _compare(self, precision: str, fused: Lanes[OneStream]) -> None:
        """Raises ``Disagreement`` where best classes are not the CPU's."""
        for one in self._setup.expected:
            if one.scores is None:
                raise Disagreement("cannot be compared with the CPU: ONNX Runtime is not installed")
            best = fused.ask(partial(_best, photos=one.photos, at_once=max(self._batches)))
            agreement = check_answers(precision, best, one)
            self._kept.add(agreement=[agreement])
            refuse(agreement)

    def _with(self, threads: int) -> GpuOptions:
        return self._options.model_copy(update={"decode_threads": threads})

    def _steps(self, precision: str, lanes: Lanes[OneStream], photos: Photos) -> Steps:
        before = self._setup.device.syncs
        times = [lanes.ask(partial(_step_ms, images=photos.pick(self._batches[0]))) for _ in range(_STEP_BATCHES)]
        return Steps(
            precision=precision,
            size=photos.size,
            batch=self._batches[0],
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
