"""The benchmarks on a real Triton, with a clip that is small."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from builds import build
from clip_files import write_video
from PIL import Image
from proxies import refused
from shared_server import DRAWN, Served, SharedServer
from streamed import STRIDED

from onestream.measure.capacity import agreement, plain_network
from onestream.measure.capacity.clip import FPS, Clip
from onestream.measure.capacity.opencv import OpenCv
from onestream.measure.capacity.playing import Playback, play
from onestream.measure.capacity.soak import Memory, SoakPlan, growth, soak
from onestream.measure.capacity.streams import Ours
from onestream.measure.panning import write_panning
from onestream.postprocess.labels import read_labels

ROOT = Path(__file__).parents[3]
COCO = ROOT / "serving" / "data" / "coco_labels.txt"
PLAIN_COLORS = "plain_colors"


def write_plain(folder: Path, *, of: Served, name: str) -> None:
    """The network of a pipeline as others serve it, ready to serve, by a name of its own."""
    with tempfile.TemporaryDirectory() as there:
        network = of.write(Path(there))
        assert network is None or isinstance(network, Path)
        repository = Path(there) / "repository"
        build(Path(there) / f"{of.name}.yaml", folder=repository, onnx_file=network)
        served = onnx.load(str(repository / f"{of.name}_model" / "1" / "model.onnx"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plain_network, "NAME", name)
        plain_network.install(served, folder, instances=1, max_batch_size=4)


pytestmark = [
    pytest.mark.needs_triton,
    pytest.mark.slow,
    pytest.mark.serves(
        DRAWN,
        Served("plain", partial(write_plain, of=DRAWN, name=plain_network.NAME)),
        STRIDED,
        Served(PLAIN_COLORS, partial(write_plain, of=STRIDED, name=PLAIN_COLORS)),
    ),
]


@dataclass(frozen=True)
class Bench:
    server: SharedServer
    pipeline_file: Path
    clip: Path


@pytest.fixture(scope="module")
def bench(server: SharedServer, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("bench")
    clip = write_video(folder / "clip.mp4", "libx264", options={"bf": "2", "g": "20"})
    return Bench(server, server.pipeline_file("strided"), clip)


def test_both_ways_agree_about_the_same_frames(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "NAME", PLAIN_COLORS)
    found = agreement.check(bench.server.grpc_address, bench.pipeline_file, Clip.read(bench.clip), stride=2)
    assert found["top_1_equal"] >= 0.8


@pytest.mark.parametrize("kind", ["ours", "opencv"])
def test_both_ways_hold_a_stream_and_a_half(bench: Bench, kind: str) -> None:
    url = bench.server.grpc_address
    theirs = OpenCv(url, PLAIN_COLORS, bench.pipeline_file, bench.clip, 2)
    player = Ours(url, "strided", bench.clip, 2) if kind == "ours" else theirs
    played = play(player, Playback((1.0, 0.5), warm_s=0.5, seconds=2))
    assert (played.failure, played.dropped) == ("", 0)
    assert played.due == len(played.latencies_ms) == pytest.approx(2 * FPS / 2, abs=1)
    # The last frames come as soon as the stream says that it ends, without waiting for those that would reorder them.
    assert np.median(played.latencies_ms) > 0


def test_a_soak_counts_frames_and_survives_clients_that_are_killed(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onestream.measure.capacity.soak.build", build)
    network = bench.pipeline_file.with_suffix(".onnx")
    plan = SoakPlan(bench.pipeline_file, bench.clip, minutes=0.2, clients=2, onnx_file=network)
    result = soak(plan, folder=tmp_path / "soak")
    assert (result["lost"], result["out_of_order"], result["wrong_times"], result["failures"]) == (0, 0, 0, [])
    assert result["frames"] > 100
    assert result["precision"] == "float32"
    assert result["server_restarts"] == {}
    assert result["mib_per_stream"] < 120
    assert len(result["memory"]["seconds"]) == len(result["memory"]["server_mib"])


def test_growth_is_that_of_the_last_quarter_against_the_second() -> None:
    flat = Memory(server_mib=[10.0, 50.0, *[100.0] * 14], streams=[2] * 16)
    assert growth(flat, mib_per_stream=10) == 0
    growing = Memory(server_mib=list(np.linspace(100, 200, 16)), streams=[2] * 16)
    # Medians of 126.7 to 146.7, of 180 to 200, and of all.
    assert growth(growing, mib_per_stream=10) == pytest.approx((190 - 410 / 3) / 150)
    busier = Memory(server_mib=[100.0] * 8 + [130.0] * 8, streams=[2] * 8 + [5] * 8)
    assert growth(busier, mib_per_stream=10) == 0


def test_what_is_not_there_is_told(bench: Bench, tmp_path: Path) -> None:
    played = play(Ours("127.0.0.1:1", "strided", bench.clip, 2), Playback((1.0,), warm_s=0.1, seconds=0.3))
    assert "CannotConnect" in played.failure
    assert not played.held
    assert "no.mp4" in refused("bench", "streams", "--clip", str(tmp_path / "no.mp4"))


def test_both_ways_draw_the_same_boxes(server: SharedServer, tmp_path: Path) -> None:
    """By the project's detector, on a clip of a cat; OpenCV's way in a stream, too."""
    DRAWN.write(tmp_path)
    file, path, labels = tmp_path / "drawn.yaml", tmp_path / "clip.mp4", read_labels(COCO)
    with Image.open(ROOT / "examples" / "photos" / "cat.jpg") as photo:
        write_panning(path, photo, frames=60, size_hw=(270, 480))
    found = agreement.check(server.grpc_address, file, Clip.read(path), stride=1, labels=labels)
    assert found.keys() == {"boxes_equal", "ours_drawn", "theirs_drawn"}
    assert min(found.values()) >= 0.9
    player = OpenCv(server.grpc_address, plain_network.NAME, file, path, 1, tuple(labels))
    played = play(player, Playback((1.0,), warm_s=0.5, seconds=2))
    assert played.failure == ""
    assert played.latencies_ms or played.dropped
