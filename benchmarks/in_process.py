"""The limit: the same operations without a server, in one process per core, each with one thread.

Every process runs what the fused model runs: the definition compiled for DALI up to its pixels, the network with the
definition's last steps at its door, top-k. It gives no names to classes and builds no responses.
"""

from __future__ import annotations

import multiprocessing
import queue
import time
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from onestream.postprocess import top_k
from onestream.postprocess.options import Classification
from onestream.preprocess import BadImage, compile
from onestream.serving.building.onnx_postprocess import with_activation
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.engine import served as served_network
from onestream.serving.pipeline import Pipeline

Classified = tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]

_START_TIMEOUT_S = 120.0
_WARMUP_BATCHES = 5


def make_classifier(pipeline: Pipeline, network: Path) -> Callable[[Sequence[bytes]], Classified]:
    """What one process runs: encoded images to scores (batch, k) float32 and class ids (batch, k) int32."""
    options = pipeline.postprocess
    assert isinstance(options, Classification)
    activation = with_activation(options, served_network.outputs(onnx.load(network))).activation
    assert activation != "auto"
    compiled = compile(
        pipeline.preprocess.pixels(),
        backend="dali",
        limits=pipeline.limits,
        max_batch_size=pipeline.serving.max_batch_size,
        threads=1,
    )
    engine = OnnxRuntimeEngine(network, threads=1)

    def classify(images: Sequence[bytes]) -> Classified:
        pixels = []
        for sample in compiled.run(images):
            if isinstance(sample, BadImage):
                raise sample
            pixels.append(sample)
        (logits,) = engine.run(np.stack(pixels)).values()
        return top_k(logits, options.top_k, activation=activation)

    return classify


def measure(
    pipeline_file: Path,
    network: Path,
    photos: Sequence[bytes],
    *,
    batches: Sequence[int],
    processes: int,
    duration_s: float,
) -> dict[int, float]:
    """Images per second of all processes together, by batch size; each batch size runs for ``duration_s``.

    Raises ``RuntimeError`` where a process fails.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    rates: multiprocessing.Queue[tuple[int, float]] = context.Queue()
    arguments = (pipeline_file, network, tuple(photos), tuple(batches), duration_s, barrier, rates)
    workers = [context.Process(target=_work, args=(index, *arguments), daemon=True) for index in range(processes)]
    for worker in workers:
        worker.start()
    try:
        total = dict.fromkeys(batches, 0.0)
        for _ in range(processes * len(batches)):
            batch, rate = rates.get(timeout=_START_TIMEOUT_S + duration_s * len(batches))
            total[batch] += rate
    except queue.Empty:
        raise RuntimeError("a process of the in-process limit failed; its error is printed above") from None
    finally:
        for worker in workers:
            worker.join(5)
            worker.kill()
    return total


def _work(
    index: int,
    pipeline_file: Path,
    network: Path,
    photos: tuple[bytes, ...],
    batches: tuple[int, ...],
    duration_s: float,
    barrier: Barrier,
    rates: Any,
) -> None:
    classify = make_classifier(Pipeline.from_file(pipeline_file), network)
    for size in batches:
        # Processes begin at different photos, so that they do not decode the same one at the same time.
        position = index * len(photos) // 2
        for _ in range(_WARMUP_BATCHES):
            classify(photos[:size])
        barrier.wait(_START_TIMEOUT_S)
        began, images = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - began) < duration_s:
            classify([photos[(position + i) % len(photos)] for i in range(size)])
            position += size
            images += size
        rates.put((size, images / elapsed))
