"""The limit: the same operations without a server, in one process per core, each with one thread.

Every process runs what the fused model runs: the definition compiled for DALI up to its pixels, the network with the
definition's last steps at its door, postprocessing; of a cascade, its stages. It reads no requests and builds no
responses.
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

from onestream.postprocess.options import AnyPostprocess, read_postprocess
from onestream.postprocess.postprocessing import Postprocess, Tensors, labels_beside, open_postprocess
from onestream.preprocess import WHOLE_PICTURE, BadImage, Definition, Limits, compile
from onestream.preprocess.headers.reader import read_header
from onestream.serving.building.triton_config import from_text
from onestream.serving.cascade import SERVED_STAGES, STAGES_PARAMETER, ServedStage
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.models.stage_runners import OwnNetworks, samples_on_cpu
from onestream.serving.models.stages import OpenStage, Stages

_START_TIMEOUT_S = 120.0
_WARMUP_BATCHES = 5


def open_fused(
    model: Path, *, engine: type[OnnxRuntimeEngine] = OnnxRuntimeEngine
) -> Callable[[Sequence[bytes]], list[Tensors]]:
    """What one process runs: encoded images to the outputs for each. ``model`` is the folder of the fused model.

    ``engine`` runs every network.
    """
    config = from_text((model / "configs" / "cpu.pbtxt").read_text())
    parameters = {name: value.string_value for name, value in config.parameters.items()}
    limits = Limits.model_validate_json(parameters["limits"])
    if STAGES_PARAMETER in parameters:
        return _open_cascade(model, SERVED_STAGES.validate_json(parameters[STAGES_PARAMETER]), limits, engine)
    definition = Definition.from_json((model / "definition.json").read_text())
    compiled = compile(
        definition.pixels(), backend="dali", limits=limits, max_batch_size=config.max_batch_size, threads=1
    )
    network = engine(model / "1" / "model.onnx", threads=1)
    postprocess = _postprocess(read_postprocess(parameters["postprocess"]), definition, model)

    def run(images: Sequence[bytes]) -> list[Tensors]:
        pixels = []
        for sample in compiled.run(images):
            if isinstance(sample, BadImage):
                raise sample
            pixels.append(sample)
        return postprocess(network.run(np.stack(pixels)), [read_header(image).oriented_hw for image in images])

    return run


def _open_cascade(
    model: Path, served: Sequence[ServedStage], limits: Limits, engine: type[OnnxRuntimeEngine]
) -> Callable[[Sequence[bytes]], list[Tensors]]:
    decoder = compile(WHOLE_PICTURE, backend="dali", limits=limits, threads=1)
    stages = Stages(
        [
            OpenStage.of(one, _postprocess(one.postprocess, one.definition, model / STAGES_PARAMETER / one.name))
            for one in served
        ],
        OwnNetworks({one.name: engine(model / "1" / f"{one.name}.onnx", threads=1) for one in served}),
        lambda stage: samples_on_cpu(stage.definition, limits),
        limits=limits,
    )

    def run(images: Sequence[bytes]) -> list[Tensors]:
        answers = []
        for picture in decoder.run(images):
            if isinstance(picture, BadImage):
                raise picture
            answers.append(stages.run(picture))
        return answers

    return run


def _postprocess(options: AnyPostprocess, definition: Definition, folder: Path) -> Postprocess:
    return open_postprocess(options, definition, labels=labels_beside(options, folder))


def measure(
    model: Path,
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
    arguments = (model, tuple(photos), tuple(batches), duration_s, barrier, rates)
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
    model: Path,
    photos: tuple[bytes, ...],
    batches: tuple[int, ...],
    duration_s: float,
    barrier: Barrier,
    rates: Any,
) -> None:
    run = open_fused(model)
    for size in batches:
        # Processes begin at different photos, so that they do not decode the same one at the same time.
        position = index * len(photos) // 2
        for _ in range(_WARMUP_BATCHES):
            run(photos[:size])
        barrier.wait(_START_TIMEOUT_S)
        began, images = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - began) < duration_s:
            run([photos[(position + i) % len(photos)] for i in range(size)])
            position += size
            images += size
        rates.put((size, images / elapsed))
