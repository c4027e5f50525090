"""CPU time of the definition, against the CPU time of decoding the whole JPEG and nothing else.

Measured in a process of its own on one core, in ``time.process_time`` (user and system time of all its threads), so it
is little disturbed by other programs. What is timed, for the same batches of photos and in turns:

*bare decode*   a DALI pipeline of ``fn.decoders.image`` alone, every pixel of the photo, output left where DALI put it
*definition*    ``preprocess.compile(definition, backend="dali").run``: header check, geometry, decode, resize, crop,
                normalize to float32 NCHW, a NumPy array for each image
*pixels*        the same up to uint8 pixels, which is what our servers run; the network normalizes at its door
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from onestream.preprocess import BadImage, Compiled, compile
from onestream.serving.pipeline import Pipeline

Timed = Literal["bare decode", "definition", "pixels"]
TIMED: tuple[Timed, ...] = get_args(Timed)
BATCH = 4

_TIMEOUT_S = 300.0
_WARMUP_PASSES = 4  # DALI's pools of memory grow during the first ones


def measure(pipeline_file: Path, photos: Sequence[bytes], *, passes: int) -> list[dict[str, float]]:
    """Milliseconds of CPU time per image, one entry for every pass over the photos.

    Raises ``multiprocessing.TimeoutError`` after five minutes.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply_async(_measure, (pipeline_file, tuple(photos), passes)).get(_TIMEOUT_S)


def _measure(pipeline_file: Path, photos: tuple[bytes, ...], passes: int) -> list[dict[str, float]]:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    definition = Pipeline.from_file(pipeline_file).preprocess
    runs: dict[Timed, Callable[[list[bytes]], None]] = {
        "bare decode": _bare_decode(),
        "definition": _definition(compile(definition, backend="dali", max_batch_size=BATCH)),
        "pixels": _definition(compile(definition.pixels(), backend="dali", max_batch_size=BATCH)),
    }
    batches = [list(photos[first : first + BATCH]) for first in range(0, len(photos), BATCH)]
    for _ in range(_WARMUP_PASSES):
        for batch in batches:
            for run in runs.values():
                run(batch)
    measured = []
    for _ in range(passes):
        used: dict[str, float] = dict.fromkeys(TIMED, 0.0)
        for batch in batches:
            for name, run in runs.items():
                began = time.process_time()
                run(batch)
                used[name] += time.process_time() - began
        measured.append({name: seconds * 1000 / len(photos) for name, seconds in used.items()})
    return measured


def _bare_decode() -> Callable[[list[bytes]], None]:
    from nvidia.dali import Pipeline as Graph
    from nvidia.dali import fn, types

    graph = Graph(batch_size=BATCH, num_threads=1, device_id=None, prefetch_queue_depth=1, exec_dynamic=True)
    with graph:
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
        graph.set_outputs(fn.decoders.image(encoded, device="cpu", output_type=types.RGB))
    graph.build()

    def run(batch: list[bytes]) -> None:
        graph.run(encoded=[np.frombuffer(image, np.uint8) for image in batch])

    return run


def _definition(compiled: Compiled) -> Callable[[list[bytes]], None]:
    def run(batch: list[bytes]) -> None:
        for sample in compiled.run(batch):
            if isinstance(sample, BadImage):
                raise sample

    return run
