"""Streams for a long time: nothing is lost, order and times are exact, memory stays flat, whoever vanishes."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

import numpy as np

from onestream.client import Client
from onestream.client.video import PacketSource, Stream
from onestream.measure.built_networks import take_over
from onestream.measure.capacity.clip import Clip
from onestream.serving.building.build import build
from onestream.serving.pipeline import Pipeline
from onestream.serving.server.server import Server
from onestream.wire.video import Packet

_LOOK_S = 2.0
_STREAM_ROUNDS = 4
"""How often a stream plays the clip before a new one begins."""

_VANDAL_S = 3.0
_VANDAL_RESULTS = 20
_JOIN_S = 60.0


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """``clients`` processes stream in mode *block* as fast as they get results; others vanish in the midst of it.

    ``repository`` is as of ``StreamsPlan``.
    """

    pipeline_file: Path
    clip: Path
    minutes: float
    clients: int = 8
    onnx_file: Path | None = None
    repository: Path | None = None


@dataclass(slots=True)
class Counts:
    """What one client saw."""

    frames: int = 0
    streams: int = 0
    lost: int = 0
    out_of_order: int = 0
    wrong_times: int = 0
    failure: str = ""


@dataclass(slots=True)
class Memory:
    """The server's memory over time, MiB: of all its processes, and of the one that decodes; and its open streams."""

    seconds: list[float] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    server_mib: list[float] = field(default_factory=list)
    decoder_mib: list[float] = field(default_factory=list)


def soak(plan: SoakPlan, *, folder: Path, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Run, and return what was seen, ready for JSON. ``folder`` takes the model repository.

    Raises ``ClipMissing``, ``OnestreamError``, ``ServingError`` or ``PreprocessError``.
    """
    started = datetime.now(timezone.utc)
    clip, pipeline = Clip.read(plan.clip), Pipeline.from_file(plan.pipeline_file)
    if plan.repository is not None:
        take_over(pipeline.name, plan.repository, folder)
    build(plan.pipeline_file, folder=folder, onnx_file=plan.onnx_file, progress=say)
    models = [f"{pipeline.name}_video", f"{pipeline.name}_model"]
    with Server(folder, http_port=0, grpc_port=0, metrics_port=0, models=models, on_event=say) as server:
        per_stream = _memory_per_stream(server, pipeline.name, clip)
        say(f"{per_stream:.0f} MiB of the server's memory for each open stream")
        counts, memory = _run(plan, server, pipeline, say)
        restarts = dict(server.restarts)
    flat = growth(memory, mib_per_stream=per_stream)
    say(f"{sum(one.frames for one in counts)} frames, {sum(one.lost for one in counts)} lost; memory {flat:+.1%}")
    return {
        "started_utc": started.isoformat(timespec="seconds"),
        "pipeline": pipeline.name,
        "precision": pipeline.serving.precision,
        "minutes": plan.minutes,
        "clients": plan.clients,
        "frames": sum(one.frames for one in counts),
        "streams": sum(one.streams for one in counts),
        "lost": sum(one.lost for one in counts),
        "out_of_order": sum(one.out_of_order for one in counts),
        "wrong_times": sum(one.wrong_times for one in counts),
        "failures": [one.failure for one in counts if one.failure],
        "server_restarts": restarts,
        "mib_per_stream": per_stream,
        "memory_growth": flat,
        "memory": asdict(memory),
    }


def growth(memory: Memory, *, mib_per_stream: float) -> float:
    """The server's memory in the last quarter of the time against the second, where everything had begun.

    Clients that vanish leave more or fewer streams open, so what each takes is left out of both.
    """
    values = [mib - streams * mib_per_stream for mib, streams in zip(memory.server_mib, memory.streams, strict=True)]
    quarter = max(1, len(values) // 4)
    before, after = np.median(values[quarter : 2 * quarter] or values), np.median(values[-quarter:])
    return float((after - before) / np.median(memory.server_mib))


def _run(plan: SoakPlan, server: Server, pipeline: Pipeline, say: Callable[[str], None]) -> tuple[list[Counts], Memory]:
    stride = pipeline.video.sampling.stride if pipeline.video else 1
    context = multiprocessing.get_context("spawn")
    duration_s, ready = 60 * plan.minutes, context.Barrier(plan.clients + 1)
    pipes, processes = [], []
    for _ in range(plan.clients):
        here, there = context.Pipe(duplex=False)
        process = context.Process(
            target=_client,
            args=(server.grpc_address, pipeline.name, plan.clip, stride, duration_s, ready, there),
            daemon=True,
        )
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    # Processes may take longer to start than a short run lasts; one that never does breaks the barrier.
    with suppress(BrokenBarrierError):
        ready.wait(_JOIN_S)
    memory, began_s = Memory(), time.monotonic()
    until_s = began_s + duration_s
    vandal, vandal_s, told_s = None, 0.0, began_s
    while (now := time.monotonic()) < until_s:
        if now - vandal_s > _VANDAL_S and (vandal is None or not vandal.is_alive()):
            vandal = context.Process(target=_vandal, args=(server.grpc_address, pipeline.name, plan.clip), daemon=True)
            vandal.start()
            vandal_s = now
        everything, decoder = _resident_mib(server, pipeline.name)
        memory.seconds.append(round(now - began_s, 1))
        memory.streams.append(_open_streams(server))
        memory.server_mib.append(round(everything, 1))
        memory.decoder_mib.append(round(decoder, 1))
        if now - told_s > 60:
            told_s = now
            say(f"{(now - began_s) / 60:.0f} min: {everything:.0f} MiB")
        time.sleep(_LOOK_S)
    counts = []
    for here, process in zip(pipes, processes, strict=True):
        try:
            counts.append(here.recv() if here.poll(_JOIN_S) else Counts(failure="no end came in time"))
        except EOFError:
            counts.append(Counts(failure="the process ended"))
        process.kill()
    return counts, memory


def _memory_per_stream(server: Server, pipeline: str, clip: Clip) -> float:
    """Of streams that are open and wait for their callers, after some that made every thread work."""
    source = PacketSource(clip.format, clip.packets)
    with Client(server.grpc_address) as client:

        def waiting() -> Stream:
            stream = client.stream(source, pipeline=pipeline, results=8).open()
            next(stream)
            return stream

        for stream in [waiting() for _ in range(2)]:
            stream.close()
        opened = [waiting()]
        time.sleep(_LOOK_S)
        one, _ = _resident_mib(server, pipeline)
        opened += [waiting() for _ in range(4)]
        time.sleep(_LOOK_S)
        five, _ = _resident_mib(server, pipeline)
        for stream in opened:
            stream.close()
    return (five - one) / 4


def _resident_mib(server: Server, pipeline: str) -> tuple[float, float]:
    """Memory of the server's processes that nobody else holds, MiB: of all, and of the one that decodes."""
    import psutil

    own = psutil.Process(server.pid)
    total = decoder = 0.0
    for process in (own, *own.children(recursive=True)):
        try:
            used = process.memory_full_info().pss / 2**20
            command = " ".join(process.cmdline())
        except psutil.Error:
            continue
        total += used
        if f"{pipeline}_video" in command:
            decoder += used
    return total, decoder


def _open_streams(server: Server) -> int:
    with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
        found = re.search(r"^onestream_video_streams\{.*\} ([0-9.e+]+)$", answer.read().decode(), re.MULTILINE)
    return round(float(found[1])) if found else 0


def _packets(clip: Clip) -> Iterator[Packet]:
    return (clip.packet(number) for number in range(_STREAM_ROUNDS * clip.frames))


def _client(url: str, pipeline: str, path: Path, stride: int, duration_s: float, ready: Any, pipe: Any) -> None:
    counts, clip = Counts(), Clip.read(path)
    times = sorted(packet.pts for packet in _packets(clip) if packet.pts is not None)
    try:
        ready.wait(_JOIN_S)
        until_s = time.monotonic() + duration_s
        with Client(url, timeout_s=60) as client:
            while time.monotonic() < until_s:
                source = PacketSource(clip.format, _packets(clip))
                with client.stream(source, pipeline=pipeline, mode="block") as results:
                    _watch(results, times, stride, until_s, counts)
                counts.streams += 1
    except Exception as error:  # it is told, not lost
        counts.failure = f"{type(error).__name__}: {error}"
    pipe.send(counts)


def _watch(results: Stream, times: list[int], stride: int, until_s: float, counts: Counts) -> None:
    expected, seen = range(0, len(times), stride), []
    for result in results:
        seen.append(result.frame_index)
        counts.wrong_times += result.pts != times[result.frame_index]
        if time.monotonic() > until_s:
            # What was still to come is not lost.
            expected = range(0, result.frame_index + 1, stride)
            break
    counts.frames += len(seen)
    counts.lost += len(set(expected) - set(seen))
    counts.out_of_order += sum(one >= other for one, other in pairwise(seen))


def _vandal(url: str, pipeline: str, path: Path) -> None:
    """A client that is killed in the midst of its stream."""
    clip = Clip.read(path)
    client = Client(url)
    stream = client.stream(PacketSource(clip.format, clip.packets), pipeline=pipeline)
    for number, _ in enumerate(stream):
        if number == _VANDAL_RESULTS:
            os._exit(1)
