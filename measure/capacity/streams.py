"""One comparison: our streams beside the usual way, on one server, with the same network, clip and sampling."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
import yaml

from onestream.client import Client
from onestream.client.video import PacketSource
from onestream.measure.built_networks import take_over
from onestream.measure.capacity import agreement, bare, plain_network
from onestream.measure.capacity import capacity_search as held
from onestream.measure.capacity.clip import FPS, Clip, due_times
from onestream.measure.capacity.opencv import OpenCv
from onestream.measure.capacity.playing import P99_LIMIT_MS, Playback, Played, Player, Playing, Times, play, rates_of
from onestream.measure.spread import Spread, ratio_of_all
from onestream.postprocess.labels import read_labels
from onestream.serving.building.build import build
from onestream.serving.engine.network_files import float_network
from onestream.serving.pipeline import Pipeline
from onestream.serving.server.fit import usable_cores
from onestream.serving.server.server import Server


@dataclass(frozen=True)
class Ours(Player):
    """One client and one thread a stream; the stream drops rather than waits, as a camera's does."""

    url: str
    pipeline: str
    clip: Path
    stride: int

    def open(self, rate: float) -> Playing:
        """See ``Player.open``."""
        clip, client = Clip.read(self.clip), Client(self.url)

        def playing(times: Times, played: Played) -> None:
            frames = sum(1 for _ in due_times(rate, times.beginning_s, times.end_s))
            sampled = [number / (FPS * rate) for number in range(0, frames, self.stride)]
            played.due = sum(times.counts(times.beginning_s + due_s) for due_s in sampled)
            packets = clip.played(rate=rate, beginning_s=times.beginning_s, until_s=times.end_s)
            # A frame can be shown when so many packets after its own number came as the codec reorders.
            reordered_s = (clip.format.reorder_depth or 0) / (FPS * rate)
            source = PacketSource(clip.format, packets, live=True)
            with client, client.stream(source, pipeline=self.pipeline) as results:
                for result in results:
                    due_s = times.beginning_s + result.frame_index / (FPS * rate)
                    if times.counts(due_s):
                        played.latencies_ms.append(1000 * (time.monotonic() - due_s - reordered_s))
                played.dropped = results.dropped + results.concealed

        return playing


OURS, OPENCV = "onestream", "OpenCV"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsPlan:
    """Every ``stride``-th frame is inferred. ``warm_s`` of every run are not counted.

    ``draws``: boxes are drawn, and the video sent back, also where the pipeline file does not say so. ``repository``:
    one whose networks are taken where they fit; a network in int8 must be there.
    """

    rounds: int = 1
    duration_s: float = 8.0
    pipeline_file: Path
    clip: Path
    stride: int = 1
    draws: bool = False
    warm_s: float = 2.0
    onnx_file: Path | None = None
    repository: Path | None = None


def compare(plan: StreamsPlan, *, folder: Path, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Measure, and return all raw numbers, ready for JSON. ``folder`` takes the model repository.

    Raises ``Disagreement``, ``ClipMissing``, ``OnestreamError``, ``ServingError`` or ``PreprocessError``.
    """
    started = datetime.now(timezone.utc)
    clip = Clip.read(plan.clip)
    pipeline_file = _with_stride(plan, folder / "pipelines")
    pipeline = Pipeline.from_file(pipeline_file)
    repository, cores = folder / "model_repository", usable_cores()
    say(f"building {pipeline.name}")
    if plan.repository is not None:
        take_over(pipeline.name, plan.repository, repository)
    build(pipeline_file, folder=repository, onnx_file=plan.onnx_file, progress=say)
    network = repository / f"{pipeline.name}_model" / "1" / "model.onnx"
    batch = pipeline.serving.max_batch_size
    # The usual way has no network in int8.
    plain_network.install(onnx.load(str(float_network(network))), repository, instances=cores, max_batch_size=batch)
    names = repository / f"{pipeline.name}_video" / "labels.txt"
    labels = tuple(read_labels(names)) if names.exists() else ()
    output = pipeline.video.output if pipeline.video else None
    models = [f"{pipeline.name}_video", f"{pipeline.name}_model", plain_network.NAME]
    with Server(repository, http_port=0, grpc_port=0, metrics_port=0, models=models) as server:
        agreed = agreement.check(server.grpc_address, pipeline_file, clip, stride=plan.stride, labels=labels)
        say("both agree: " + ", ".join(f"{name} {value:.3g}" for name, value in agreed.items()))
        players: dict[str, Player] = {
            OURS: Ours(server.grpc_address, pipeline.name, plan.clip, plan.stride),
            OPENCV: OpenCv(server.grpc_address, plain_network.NAME, pipeline_file, plan.clip, plan.stride, labels),
        }

        def attempt(player: Player) -> Callable[[float], Played]:
            def at(load: float) -> Played:
                played = play(player, Playback(rates_of(load), plan.warm_s, plan.duration_s))
                # Raises the reason where the server has ended, which no stream is to blame for.
                server.wait(0)
                return played

            return at

        attempts = {name: attempt(player) for name, player in players.items()}
        say("measuring what decoding and the network cost alone")
        before = bare.measure(plan.clip, network, output)
        start = dict.fromkeys(players, 0.6 * before.streams_encoded(cores, stride=plan.stride))
        rounds = []
        for number in range(plan.rounds):
            found = held.find(attempts, start=start, say=say)
            after = bare.measure(plan.clip, network, output)
            tried = [asdict(one) for one in found.tried]
            rounds.append({"held": found.held, "bare_ms": [asdict(before), asdict(after)], "tried": tried})
            say(f"round {number + 1}: " + ", ".join(f"{name} {value:.2f}" for name, value in found.held.items()))
            start = {name: value or start[name] for name, value in found.held.items()}
            before = after
    return {
        "started_utc": started.isoformat(timespec="seconds"),
        "pipeline": pipeline.name,
        "precision": pipeline.serving.precision,
        "stride": plan.stride,
        "fps": FPS,
        "p99_limit_ms": P99_LIMIT_MS,
        "warm_s": plan.warm_s,
        "seconds": plan.duration_s,
        "cores": cores,
        "clip": {
            "frames": clip.frames,
            "width": clip.format.width,
            "height": clip.format.height,
            "codec": clip.format.codec,
            "bitrate": clip.format.bitrate,
        },
        "output": None if output is None else output.model_dump(),
        "versions": {name: version(name) for name in ("av", "opencv-python-headless", "onnxruntime", "numpy")},
        "agreement": agreed,
        "rounds": rounds,
    }


def _with_stride(plan: StreamsPlan, folder: Path) -> Path:
    """A copy of the pipeline file with the plan's sampling; files that it names are found from there."""
    fields = yaml.safe_load(plan.pipeline_file.read_text(encoding="utf-8"))
    video = fields.get("video") or {}
    output = {"output": video.get("output") or {}} if plan.draws else {}
    fields["video"] = {**video, **output, "sampling": {"stride": plan.stride}}
    folder.mkdir(parents=True, exist_ok=True)
    for beside in plan.pipeline_file.parent.iterdir():
        if beside.is_file() and beside.suffix not in (".yaml", ".yml"):
            shutil.copyfile(beside, folder / beside.name)
    path = folder / plan.pipeline_file.name
    path.write_text(yaml.safe_dump({"name": plan.pipeline_file.stem, **fields}, sort_keys=False), encoding="utf-8")
    return path


@dataclass(frozen=True, slots=True)
class Summary:
    """What a result says, over its rounds: streams held by each, and ours divided by OpenCV's and by two bounds.

    ``costs`` is what a frame takes at least. ``of_bound`` is what we held, divided by the streams that decoding and the
    network alone would leave room for; ``of_bound_encoded`` the same with encoding counted as work that must be done.
    """

    held: dict[str, Spread]
    against_opencv: Spread | None
    costs: bare.Bare
    bound: Spread
    bound_encoded: Spread
    of_bound: Spread
    of_bound_encoded: Spread

    @classmethod
    def of(cls, result: dict[str, Any]) -> Summary:
        """Summarize a result of ``compare``."""
        rounds, cores, stride = result["rounds"], result["cores"], result["stride"]
        ours, theirs = ([one["held"][name] for one in rounds] for name in (OURS, OPENCV))
        costs = [bare.Bare.mean([bare.Bare(**cost) for cost in one["bare_ms"]]) for one in rounds]
        bound = [cost.streams(cores, stride=stride) for cost in costs]
        encoded = [cost.streams_encoded(cores, stride=stride) for cost in costs]
        return cls(
            {OURS: Spread.of(ours), OPENCV: Spread.of(theirs)},
            ratio_of_all(ours, theirs) if all(theirs) else None,
            bare.Bare.mean(costs),
            Spread.of(bound),
            Spread.of(encoded),
            ratio_of_all(ours, bound),
            ratio_of_all(ours, encoded),
        )


def quiet_numbers() -> None:
    """Numeric libraries of this process and those that it starts use one thread: streams are what is parallel."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
