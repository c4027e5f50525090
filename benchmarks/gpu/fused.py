"""The fused form in process, against the decoding and the network that it is made of, each alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx

from benchmarks.gpu.agreement import check_answers, refuse
from benchmarks.gpu.measure import Batch, Lanes, Photos, Workload, reason
from benchmarks.gpu.results import Kept, Steps
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
from onestream.wire.tensor_names import CLASS_IDS, PIXELS

PRECISIONS: tuple[Literal["fp32", "tf32", "fp16"], ...] = ("fp32", "tf32", "fp16")
IN_FLIGHT = (1, 2, 3)
_LANES = max(IN_FLIGHT)
_STEP_BATCHES = 20
_DECODING_SHARE = 0.4


def measure_fused(setup: Setup, kept: Kept) -> None:
    """Keep what runs the network, what agrees with it on the CPU, images per second, and times by step.

    Few decoders and networks are open at a time: all together they fill an H100's memory.
    """
    if setup.network is None:
        setup.missing["fused"] = "the network is not built; run: onestream build"
        return
    bench = _Bench(setup, setup.network, kept)
    # Before there is a network, which can end the process.
    bench.decoding(share=_DECODING_SHARE)
    groups = [(precision, threads) for precision in PRECISIONS for threads in bench.threads_of(precision)]
    for number, (precision, threads) in enumerate(groups, start=1):
        bench.network(precision, threads, share=_DECODING_SHARE + (1 - _DECODING_SHARE) * number / len(groups))


def thread_counts(cores: int, served: int) -> tuple[int, ...]:
    """Threads of a decoder that are compared: what is served by default, and what keeps more of the cores busy."""
    return (served, *(count for count in (2, 8, 16) if count != served and count <= max(2, cores // 2)))


class _Bench:
    """Measures one group of parts after the other; what is opened for a group is closed after it."""

    def __init__(self, setup: Setup, network: Path, kept: Kept) -> None:
        self._setup, self._kept = setup, kept
        self._batches = setup.plan.fused_batches
        self._options = setup.pipeline.serving.gpu.model_copy(update={"max_batch_size": max(self._batches)})
        self._threads = thread_counts(setup.cores, self._options.threads_for(setup.cores))
        with_tail = with_postprocess(onnx.load(network), setup.pipeline.postprocess)
        self._network: bytes = with_tail.SerializeToString(deterministic=True)

    def threads_of(self, precision: str) -> tuple[int, ...]:
        """Threads of a decoder with which a precision is measured: all with the first, which shows the best."""
        return self._threads if precision == PRECISIONS[0] else self._threads[:1]

    def decoding(self, *, share: float) -> None:
        """Keep the rates of decoding alone, by numbers of threads."""
        name = f"{self._options.backend}, decode {self._options.decode}"
        with ExitStack() as opened:
            parts: list[Callable[..., Workload]] = []
            for threads in self._threads:
                try:
                    lanes = self._lanes(partial(_Decoding, self._setup, self._with(threads)), opened)
                except Exception as error:  # a backend that is missing here, or a driver's error
                    self._setup.missing["decode alone"] = reason(error)
                else:
                    parts.append(partial(Workload, "decode alone", name, lanes, _decode, decode_threads=threads))
            self._setup.measure("fused", self._points(self._setup.photos, *parts), self._kept, share=share)

    def network(self, precision: Literal["fp32", "tf32", "fp16"], threads: int, *, share: float) -> None:
        """Keep the rates of the fused form; with the threads that are served also of the network alone, and steps.

        Nothing where an answer is not that of the CPU.
        """
        served = threads == self._threads[0]
        if not served and f"fused: {precision}" in self._setup.missing:
            return
        with ExitStack() as opened:
            try:
                engine = self._open(precision, opened)
                points = []
                if served:
                    alone = self._lanes(lambda: _Alone(engine, self._setup.device), opened)
                    # It reads no photos.
                    points += self._points([None], partial(Workload, "network alone", precision, alone, _run_network))
                fused = self._fused(engine, precision, threads, opened)
                if served:
                    self._compare(precision, fused)
                part = partial(Workload, "fused", precision, fused, _run_fused, decode_threads=threads)
                points += self._points(self._setup.photos, part)
            except Exception as error:  # no engine, another best class: the other precision is still measured
                self._setup.missing[f"fused: {precision}"] = reason(error)
                return
            self._setup.measure("fused", points, self._kept, share=share)
            if served and f"fused: {precision}" not in self._setup.missing:
                self._keep_steps(precision, fused)

    def _points(self, photos: Sequence[Photos | None], *parts: Callable[..., Workload]) -> list[Workload]:
        """Each part, which lacks these three, at every set of photos, batch and number in flight."""
        return [
            part(one, batch, in_flight)
            for one in photos
            for batch in self._batches
            for part in parts
            for in_flight in IN_FLIGHT
        ]

    def _keep_steps(self, precision: str, lanes: Lanes[OneStream]) -> None:
        """GPU time by step and host waits of fused batches, each begun when the one before is done."""
        try:
            for photos in self._setup.photos:
                self._kept.add(steps=[self._steps(precision, lanes, photos)])
        except Exception as error:  # the rates were measured all the same
            self._setup.missing[f"steps: {precision}"] = reason(error)

    def _open(self, precision: Literal["fp32", "tf32", "fp16"], opened: ExitStack) -> DeviceEngine:
        setup, options = self._setup, self._options.model_copy(update={"precision": precision})
        setup.progress(f"network, {precision}: opening, which can build a plan first")
        engine, name = _open_engine(self._network, options, setup.device, setup.progress)
        opened.callback(engine.close)
        self._kept.add(engine=name)
        return engine

    def _fused(self, engine: DeviceEngine, precision: str, threads: int, opened: ExitStack) -> Lanes[OneStream]:
        pipeline, options = self._setup.pipeline, self._with(threads).model_copy(update={"precision": precision})
        return self._lanes(
            partial(
                OneStream, pipeline.preprocess, pipeline.limits, engine, device=self._setup.device, options=options
            ),
            opened,
        )

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

    def _lanes(self, open_state: Callable[[], Any], opened: ExitStack) -> Lanes[Any]:
        lanes = Lanes(_LANES, open_state, device=self._setup.device)
        opened.callback(lanes.close)
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
        self.stream.fill(self.session.inputs[PIXELS], 127)
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
