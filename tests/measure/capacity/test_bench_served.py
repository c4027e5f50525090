"""The benchmarks on a real Triton, with a clip that is small."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from builds import build
from clip_files import write_video
from networks import mean_color
from PIL import Image
from shared_server import DRAWN, Served, SharedServer
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.measure.capacity import agreement, plain_network
from onestream.measure.capacity.clip import FPS, Clip
from onestream.measure.capacity.opencv import OpenCv
from onestream.measure.capacity.playing import Playback, play
from onestream.measure.capacity.soak import Memory, SoakPlan, growth, soak
from onestream.measure.capacity.streams import Ours
from onestream.measure.panning import write_panning
from onestream.postprocess.labels import read_labels
from onestream.serving.server.server import Server


def write_plain(folder: Path) -> None:
    """The network of ``DRAWN`` as others serve it, ready to serve."""
    with tempfile.TemporaryDirectory() as there:
        DRAWN.write(Path(there))
        repository, _ = with_plain_network(Path(there) / "drawn.yaml")
        shutil.copytree(repository / plain_network.NAME, folder / plain_network.NAME)


pytestmark = [pytest.mark.needs_triton, pytest.mark.slow, pytest.mark.serves(DRAWN, Served("plain", write_plain))]

ROOT = Path(__file__).parents[3]
COCO = ROOT / "serving" / "data" / "coco_labels.txt"

FIELDS = {
    "preprocess": {
        "operations": [
            {"op": "decode"},
            {"op": "resize", "mode": "shorter", "size": 40},
            {"op": "center_crop", "size": [32, 32]},
            {"op": "normalize", "mean": [0, 0, 0], "std": [1, 1, 1]},
        ]
    },
    "video": {"sampling": {"stride": 2}},
    "serving": {"cpu_instances": 1},  # starting processes is what takes time here
}


@dataclass(frozen=True)
class Bench:
    server: Server | SharedServer
    pipeline_file: Path
    clip: Path


@pytest.fixture(scope="module")
def pipeline_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "colors.yaml"
    path.write_text(yaml.safe_dump(FIELDS))
    return path


def with_plain_network(pipeline_file: Path, onnx_file: Path | None = None) -> tuple[Path, list[str]]:
    """A repository with the network as others serve it, and the models that both ways ask."""
    repository, name = pipeline_file.parent / "repository", pipeline_file.stem
    build(pipeline_file, folder=repository, onnx_file=onnx_file)
    served = onnx.load(str(repository / f"{name}_model" / "1" / "model.onnx"))
    plain_network.install(served, repository, instances=1, max_batch_size=4)
    return repository, [f"{name}_video", f"{name}_model", plain_network.NAME]


@pytest.fixture(scope="module")
def bench(pipeline_file: Path) -> Iterator[Bench]:
    """A server of its own: the plain network has one name, which the detector's has on the shared one."""
    folder = pipeline_file.parent
    network = folder / "colors.onnx"
    network.write_bytes(mean_color(("batch", 3, 32, 32)).SerializeToString())
    repository, models = with_plain_network(pipeline_file, network)
    clip = write_video(folder / "clip.mp4", "libx264", options={"bf": "2", "g": "20"})
    with Server(repository, http_port=0, grpc_port=0, metrics_port=0, models=models) as server:
        yield Bench(server, pipeline_file, clip)


def test_both_ways_agree_about_the_same_frames(bench: Bench) -> None:
    found = agreement.check(bench.server.grpc_address, bench.pipeline_file, Clip.read(bench.clip), stride=2)
    assert found["top_1_equal"] >= 0.8


@pytest.mark.parametrize("kind", ["ours", "opencv"])
def test_both_ways_hold_a_stream_and_a_half(bench: Bench, kind: str) -> None:
    url = bench.server.grpc_address
    player = (
        Ours(url, "colors", bench.clip, 2)
        if kind == "ours"
        else OpenCv(url, plain_network.NAME, bench.pipeline_file, bench.clip, 2)
    )
    played = play(player, Playback((1.0, 0.5), warm_s=0.5, seconds=2))
    assert (played.failure, played.dropped) == ("", 0)
    assert played.due == len(played.latencies_ms) == pytest.approx(2 * FPS / 2, abs=1)
    # The last frames come as soon as the stream says that it ends, without waiting for those that would reorder them.
    assert np.median(played.latencies_ms) > 0


def test_streams_of_a_server_that_is_not_there_are_a_failure(bench: Bench) -> None:
    played = play(Ours("127.0.0.1:1", "colors", bench.clip, 2), Playback((1.0,), warm_s=0.1, seconds=0.3))
    assert "CannotConnect" in played.failure
    assert not played.held


def test_a_soak_counts_frames_and_survives_clients_that_are_killed(pipeline_file: Path, bench: Bench) -> None:
    messages: list[str] = []
    folder = pipeline_file.parent / "soak"
    build(pipeline_file, folder=folder, onnx_file=pipeline_file.parent / "colors.onnx")
    plan = SoakPlan(pipeline_file, bench.clip, minutes=0.2, clients=2, onnx_file=pipeline_file.parent / "colors.onnx")
    result = soak(plan, folder=folder, say=messages.append)
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


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["bench", "streams", "--clip", str(tmp_path / "no.mp4")])
    assert found.exit_code == 2
    assert "no.mp4" in found.output


@pytest.fixture(scope="module")
def drawing(server: SharedServer, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The project's detector with boxes drawn, and a clip of a cat."""
    folder = tmp_path_factory.mktemp("drawing")
    DRAWN.write(folder)
    with Image.open(ROOT / "examples" / "photos" / "cat.jpg") as photo:
        write_panning(folder / "clip.mp4", photo, frames=60, size_hw=(270, 480))
    return Bench(server, folder / "drawn.yaml", folder / "clip.mp4")


def test_both_ways_draw_the_same_boxes(drawing: Bench) -> None:
    address, clip = drawing.server.grpc_address, Clip.read(drawing.clip)
    found = agreement.check(address, drawing.pipeline_file, clip, stride=1, labels=read_labels(COCO))
    assert found.keys() == {"boxes_equal", "ours_drawn", "theirs_drawn"}
    assert min(found.values()) >= 0.9


def test_opencv_draws_a_stream(drawing: Bench) -> None:
    address = drawing.server.grpc_address
    player = OpenCv(address, plain_network.NAME, drawing.pipeline_file, drawing.clip, 1, tuple(read_labels(COCO)))
    played = play(player, Playback((1.0,), warm_s=0.5, seconds=2))
    assert played.failure == ""
    assert played.latencies_ms or played.dropped
