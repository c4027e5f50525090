"""Good pictures and streams with a quarter of hostile traffic beside them: who is hurt, and whose memory grows."""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import psutil
from PIL import Image

from benchmarks.hostile import attackers
from benchmarks.hostile.attackers import Addresses
from benchmarks.hostile.streams import Clip
from onestream.client import Client
from onestream.client.video import PacketSource
from onestream.measure.panning import write_panning
from onestream.serving.building.build import build
from onestream.serving.server.server import Server
from onestream.serving.server.triton.model_processes import find_model_processes

ROOT = Path(__file__).parents[2]
HOSTILE_SHARE = 0.25
WARM_UP_S = 600.0
"""After so long, or half of a shorter soak, every queue and allocator has met what comes."""
_LOOK_S = 10.0
_AGREE_S, _END_S = 120.0, 90.0
_PACE_S = 0.005
_FRAMES, _SIZE_HW = 30, (180, 320)
_FORMS = ("classify", "classify_fused")


@dataclass(slots=True)
class Counts:
    """What the load did and met. ``hurt`` counts how good requests were hurt, by kind."""

    pictures: int = 0
    frames: int = 0
    streams: int = 0
    hostile: Counter[str] = field(default_factory=Counter)
    hurt: Counter[str] = field(default_factory=Counter)

    @property
    def good(self) -> int:
        """Good requests: pictures and streams."""
        return self.pictures + self.streams


def measure(*, minutes: float, seed: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Soak one real server for so long, and return what was seen, ready for JSON.

    The load runs in a process of its own, so that this one is what ``onestream serve`` would be: *serve* in
    ``memory_mib``, which holds the private memory of every process each 10 s, and in ``growth_percent``, which compares
    its median in the last tenth of the time with that in the tenth after the warm-up.
    """
    with tempfile.TemporaryDirectory(prefix="onestream-soak-") as name:
        folder = Path(name)
        build(ROOT / "pipelines" / "classify.yaml", folder=folder / "repository", progress=progress)
        clip = folder / "clip.mp4"
        with Image.open(ROOT / "examples" / "photos" / "temple.jpg") as photo:
            write_panning(clip, photo, frames=_FRAMES, size_hw=_SIZE_HW)
        with Server(folder / "repository", http_port=0, grpc_port=0, metrics_port=0, on_event=progress) as server:
            counts, seconds, memory, failure = _soak(server, clip, minutes=minutes, seed=seed, progress=progress)
            restarts = dict(server.restarts)
    warm_up_s = min(WARM_UP_S, 30 * minutes)
    return {
        "minutes": minutes,
        "seed": seed,
        "good": counts.good,
        "good_pictures": counts.pictures,
        "good_streams": counts.streams,
        "good_frames": counts.frames,
        "good_hurt": sum(counts.hurt.values()),
        "hurt_how": dict(counts.hurt),
        "hostile": sum(counts.hostile.values()),
        "hostile_kinds": dict(counts.hostile),
        "failure": failure,
        "restarts": restarts,
        "warm_up_s": warm_up_s,
        "growth_percent": growth(seconds, memory, warm_up_s=warm_up_s),
        "seconds": seconds,
        "memory_mib": memory,
    }


def growth(seconds: list[float], memory: dict[str, list[float]], *, warm_up_s: float) -> dict[str, float]:
    """Percent by which the memory of each process grew after the warm-up; empty where too little was seen."""
    after = [number for number, second in enumerate(seconds) if second >= warm_up_s]
    tenth = max(1, len(after) // 10)
    return {
        name: round(100 * (median(values[i] for i in after[-tenth:]) / median(values[i] for i in after[:tenth]) - 1), 1)
        for name, values in memory.items()
        if len(after) > 1 and len(values) == len(seconds)
    }


def _soak(
    server: Server, clip: Path, *, minutes: float, seed: int, progress: Callable[[str], None]
) -> tuple[Counts, list[float], dict[str, list[float]], str]:
    addresses = Addresses(
        grpc_url=server.grpc_url,
        http_url=server.http_url,
        grpc_address=server.grpc_address,
        http_address=server.http_address,
    )
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    load = context.Process(target=_load, args=(addresses, clip, 60 * minutes, seed, there), daemon=True)
    load.start()
    there.close()
    try:
        if not here.poll(_AGREE_S):
            raise TimeoutError(f"the server did not answer alone within {_AGREE_S:g} s")
        here.recv()
        began_s, seconds, memory = time.monotonic(), list[float](), dict[str, list[float]]()
        while (now_s := time.monotonic() - began_s) < 60 * minutes and load.is_alive():
            seconds.append(round(now_s, 1))
            for name, mib in _private_mib(server).items():
                memory.setdefault(name, []).append(mib)
            if len(seconds) % 6 == 1:
                progress(
                    f"{now_s / 60:.0f} min: " + ", ".join(f"{name} {values[-1]:.0f}" for name, values in memory.items())
                )
            load.join(min(_LOOK_S, 6 * minutes))
        if here.poll(_END_S):
            with contextlib.suppress(EOFError):
                return here.recv(), seconds, memory, ""
        return Counts(), seconds, memory, "the load ended without its counts"
    finally:
        load.kill()
        load.join()


def _private_mib(server: Server) -> dict[str, float]:
    """Memory that nobody else holds: of tritonserver, of the processes of each model together, and of this one."""
    processes = [("serve", psutil.Process().pid), ("tritonserver", server.pid)]
    processes += [(process.model, process.pid) for process in find_model_processes(server.pid).running]
    found: dict[str, float] = {}
    for name, pid in processes:
        with contextlib.suppress(psutil.Error):
            found[name] = round(found.get(name, 0.0) + psutil.Process(pid).memory_full_info().uss / 2**20, 1)
    return found


class _Load:
    """Threads that send until the time is over, hostile ones as often as the share allows."""

    def __init__(self, addresses: Addresses, clip: Clip, *, seed: int) -> None:
        self.counts, self._lock = Counts(), threading.Lock()
        self._addresses, self._clip, self._seed = addresses, clip, seed
        self._photos = [path.read_bytes() for path in sorted((ROOT / "examples" / "photos").glob("*.jpg"))]
        with Client(addresses.grpc_url, timeout_s=60) as client:
            self._alone = {
                (form, number): client.classify(photo, pipeline=form).labels
                for form in _FORMS
                for number, photo in enumerate(self._photos)
            }
            self._frames_alone = self._stream(client)
        self._until_s = float("inf")

    def run(self, seconds: float) -> None:
        """Send for so long."""
        self._until_s = time.monotonic() + seconds
        urls = (self._addresses.grpc_url, self._addresses.http_url)
        random, photo = Random(self._seed), self._photos[0]
        hostile = {
            "pictures": attackers.send_bad_pictures(self._addresses, photo, Random(random.random())),
            "streams": attackers.send_bad_streams(self._addresses, self._clip, Random(random.random())),
            "connections": attackers.come_and_go(self._addresses, photo, Random(random.random())),
        }
        threads = [threading.Thread(target=self._good_pictures, args=(url, form)) for url in urls for form in _FORMS]
        threads.append(threading.Thread(target=self._good_streams))
        threads += [threading.Thread(target=self._hostile, args=item) for item in hostile.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @property
    def _goes_on(self) -> bool:
        return time.monotonic() < self._until_s

    def _good_pictures(self, url: str, form: str) -> None:
        with Client(url, timeout_s=60) as client:
            while self._goes_on:
                for number, photo in enumerate(self._photos):
                    with self._whatever_hurts():
                        if client.classify(photo, pipeline=form).labels != self._alone[form, number]:
                            self._hurt("another answer")
                    with self._lock:
                        self.counts.pictures += 1

    def _good_streams(self) -> None:
        with Client(self._addresses.grpc_url, timeout_s=60) as client:
            while self._goes_on:
                frames = self._frames_alone
                with self._whatever_hurts():
                    frames = self._stream(client)
                    if frames != self._frames_alone:
                        self._hurt("another stream")
                with self._lock:
                    self.counts.streams += 1
                    self.counts.frames += len(frames)

    def _stream(self, client: Client) -> list[Any]:
        source = PacketSource(self._clip.opening, self._clip.packets)
        with client.stream(source, pipeline="classify", mode="block") as results:
            return [(one.frame_index, None if one.result is None else one.result.values()) for one in results]

    def _hostile(self, kind: str, attack: Iterator[None]) -> None:
        while self._goes_on:
            with self._lock:
                sent = sum(self.counts.hostile.values())
                may = sent < HOSTILE_SHARE / (1 - HOSTILE_SHARE) * self.counts.good
                self.counts.hostile[kind] += may
            if not may:
                time.sleep(_PACE_S)
                continue
            with contextlib.suppress(OSError):
                next(attack)

    @contextlib.contextmanager
    def _whatever_hurts(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever it is, it is counted
            self._hurt(f"{type(error).__name__}: {str(error)[:100]}")

    def _hurt(self, how: str) -> None:
        with self._lock:
            self.counts.hurt[how] += 1


def _load(addresses: Addresses, clip: Path, seconds: float, seed: int, pipe: Connection) -> None:
    load = _Load(addresses, Clip.read(clip, pipeline="classify"), seed=seed)
    pipe.send("the server answers alone")
    load.run(seconds)
    pipe.send(load.counts)
