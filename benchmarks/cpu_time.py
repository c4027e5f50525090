"""CPU time: of the definition against that of decoding the whole JPEG and nothing else, and around a measurement.

The definition's is measured in a process of its own on one core, in ``time.process_time`` (user and system time of all
its threads), so it is little disturbed by other programs. What is timed, for the same batches of photos and in turns:

*bare decode*   a DALI pipeline of ``fn.decoders.image`` alone, every pixel of the photo, output left where DALI put it
*definition*    ``preprocess.compile(definition, backend="dali").run``: header check, geometry, decode, resize, crop,
                normalize to float32 NCHW, a NumPy array for each image
*pixels*        the same up to uint8 pixels, which is what our servers run; the network normalizes at its door
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import psutil
import tritonclient.grpc as triton

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


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters at one moment, of the server and of all programs.

    Times are in CPU seconds since some start; counts are of one model.
    """

    server_s: float
    own_s: float
    busy_s: float
    idle_s: float
    images: int
    executions: int

    @classmethod
    def now(cls, *, server_pid: int, client: triton.InferenceServerClient, model: str) -> Usage:
        """Read the counters of the machine, of the server's processes and of a served model."""
        server = psutil.Process(server_pid)
        server_s = sum(_cpu_s(process) for process in (server, *server.children(recursive=True)))
        finished = resource.getrusage(resource.RUSAGE_CHILDREN)
        own_s = server_s + _cpu_s(psutil.Process()) + finished.ru_utime + finished.ru_stime
        machine = psutil.cpu_times()
        idle_s = machine.idle + machine.iowait
        (statistics,) = client.get_inference_statistics(model).model_stats
        return cls(
            server_s=server_s,
            own_s=own_s,
            busy_s=sum(machine) - idle_s - machine.guest - machine.guest_nice,  # guest is counted in user already
            idle_s=idle_s,
            images=statistics.inference_count,
            executions=statistics.execution_count,
        )

    def images_per_execution(self, earlier: Usage) -> float:
        """Mean batch of the model since ``earlier``; 0 where it did not run."""
        executions = self.executions - earlier.executions
        return (self.images - earlier.images) / executions if executions else 0.0

    def server_cpu_ms(self, earlier: Usage) -> float:
        """CPU milliseconds of the server per image since ``earlier``; 0 where no image was served."""
        images = self.images - earlier.images
        return (self.server_s - earlier.server_s) * 1000 / images if images else 0.0

    def others_cpu_share(self, earlier: Usage) -> float:
        """Share of the machine that neither the server nor the benchmark used since ``earlier``, 0 to 1."""
        busy_s, idle_s = self.busy_s - earlier.busy_s, self.idle_s - earlier.idle_s
        total_s = busy_s + idle_s
        return max(0.0, busy_s - (self.own_s - earlier.own_s)) / total_s if total_s else 0.0


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
