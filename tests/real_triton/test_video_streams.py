"""Video streams through a real Triton: the loader's pixels, order, sharing, colours, files that are cut short."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import yaml
from clip_files import write_video
from networks import CLASSES
from pages import blocks, printed_by
from PIL import Image
from shared_server import CLASSIFY, SharedServer
from streamed import OPERATIONS, STREAMED, STRIDED
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.client import Client, TruncatedInput
from onestream.measure.parity.run import CannotCompare, Options, run
from onestream.preprocess import Definition
from onestream.preprocess.errors import BadSample
from onestream.preprocess.video.clips.choose_frames import Clip
from onestream.preprocess.video.clips.maker import ClipMaker
from onestream.preprocess.video.common.color import ColorRule

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow, pytest.mark.serves(CLASSIFY, STREAMED, STRIDED)]

ROOT = Path(__file__).parents[2]
FRAMES, FRAME_S = 40, Fraction(1001, 30000)
DEFINITION = Definition.model_validate({"operations": OPERATIONS})


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """H.264 with B-frames: a photo that wanders, so that every frame is another."""
    path = tmp_path_factory.mktemp("video") / "clip.mp4"
    shown = wandering((240, 320), frames=FRAMES, step=5)
    return write_video(path, "libx264", options={"bf": "2", "g": "20"}, time_base=FRAME_S, pictures=shown)


def wandering(size_hw: tuple[int, int], *, frames: int, step: int) -> list[np.ndarray[Any, Any]]:
    with Image.open(ROOT / "examples" / "photos" / "coffee.jpg") as image:
        photo = np.asarray(image.convert("RGB").resize(size_hw[::-1]))
    return [np.roll(photo, step * number, axis=1) for number in range(frames)]


@pytest.fixture(scope="module")
def expected(clip: Path) -> np.ndarray[Any, Any]:
    """The scores of every frame, from what the training loader makes of the same file."""
    return scores_of(clip)


def scores_of(clip: Path, rule: ColorRule | None = None) -> np.ndarray[Any, Any]:
    samples = ClipMaker(DEFINITION, Clip(), color=rule or ColorRule()).make(clip)
    weights = np.random.default_rng(7).normal(size=(3, CLASSES)).astype(np.float32)
    return samples.mean(axis=(2, 3)) @ weights


def test_every_frame_in_order_and_equal_to_the_training_loader(
    grpc_client: Client, clip: Path, expected: np.ndarray[Any, Any]
) -> None:
    with grpc_client.stream(clip, pipeline="streamed") as frames:
        results = list(frames)
        assert frames.ended_reason == "done"
        assert (frames.decoded, frames.dropped, frames.concealed) == (FRAMES, 0, 0)
    assert [one.frame_index for one in results] == list(range(FRAMES))
    times = [one.pts_seconds for one in results]
    np.testing.assert_allclose(times, np.arange(FRAMES) * float(FRAME_S), atol=1e-4)
    # float32 sums in another order, nothing else.
    np.testing.assert_allclose([one.tensors["scores_out"] for one in results], expected, atol=1e-5)


def test_clips_that_are_joined_and_sizes_that_change_lose_no_frame(grpc_client: Client, tmp_path: Path) -> None:
    parts = [
        write_video(
            tmp_path / f"{n}.ts", "libx264", options={"bf": "2"}, pictures=wandering(size_hw, frames=20, step=9)
        )
        for n, size_hw in enumerate([(240, 320), (240, 320), (360, 640)])
    ]
    expected = np.concatenate([scores_of(part) for part in parts])
    joined, raw = tmp_path / "joined.ts", tmp_path / "joined.h264"
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    with av.open(str(joined)) as source:
        raw.write_bytes(b"".join(bytes(packet) for packet in source.demux(video=0)))
    for path in (joined, raw):
        with grpc_client.stream(path, pipeline="streamed") as frames:
            results = list(frames)
            assert (frames.ended_reason, frames.decoded, frames.concealed, frames.unshown) == ("done", 60, 0, 0)
        np.testing.assert_allclose([one.tensors["scores_out"] for one in results], expected, atol=1e-5)
        if path == joined:
            times = np.array([one.pts_seconds for one in results])
            np.testing.assert_allclose(times - times[0], np.arange(60) / 25, atol=1e-4)


def test_a_file_that_was_cut_short_gives_what_is_there_and_then_says_so(
    grpc_client: Client, server: SharedServer, clip: Path, expected: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    """The same file is refused by the training loader, with the same words."""
    cut = tmp_path / "cut.mkv"
    with av.open(str(clip)) as source, av.open(str(cut), "w") as copy:
        stream = copy.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                copy.mux(packet)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 6 // 10])
    results = []
    with grpc_client.stream(cut, pipeline="streamed") as frames, pytest.raises(TruncatedInput) as raised:
        results.extend(frames)
    assert frames.truncated
    assert 0 < len(results) == frames.decoded < FRAMES
    # The last pictures refer to what is missing.
    whole = len(results) - 4
    np.testing.assert_allclose([one.tensors["scores_out"] for one in results[:whole]], expected[:whole], atol=1e-5)
    with pytest.raises(BadSample, match="truncated: the file ends after") as refused:
        ClipMaker(DEFINITION, Clip()).make(cut)
    assert str(refused.value).partition("truncated")[2] == str(raised.value).partition("truncated")[2]
    done = CliRunner().invoke(
        app, ["stream", "--url", server.grpc_address, "--pipeline", "streamed", "--json", str(cut)]
    )
    assert done.exit_code == 1
    assert json.loads(done.stdout.splitlines()[-1])["truncated"] is True


def test_streams_at_once_share_batches_and_do_not_mix(
    grpc_client: Client, clip: Path, expected: np.ndarray[Any, Any]
) -> None:
    seen: dict[int, list[Any]] = {}

    def watch(number: int) -> None:
        with grpc_client.stream(clip, pipeline="streamed") as frames:
            seen[number] = [one.tensors["scores_out"] for one in frames]

    before = grpc_client.statistics("streamed_model")
    threads = [threading.Thread(target=watch, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(seen) == [0, 1, 2, 3]
    for scores in seen.values():
        np.testing.assert_allclose(scores, expected, atol=1e-5)
    after = grpc_client.statistics("streamed_model")
    assert after.inference_count - before.inference_count == 4 * FRAMES
    assert after.execution_count - before.execution_count < 4 * FRAMES, "frames of several streams share batches"


def test_the_page_s_python_and_the_command_run(server: SharedServer, clip: Path) -> None:
    code, _composing, _tracking = blocks("video.md", "python")
    lines = printed_by(code.replace("127.0.0.1:8001", server.grpc_address).replace("clip.mp4", str(clip)))
    assert lines[0].startswith("0 0.0 ")
    assert lines[0].endswith(" espresso")
    assert lines[-1] == f"{FRAMES} 0 0 done"
    command = [sys.executable, "-m", "onestream", "stream", "--url", server.grpc_address, "--json", str(clip)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *found, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["frame_index"] for one in found] == list(range(FRAMES))
    assert "frame_index" not in summary
    assert found[0]["labels"][0] == "espresso"


@pytest.mark.parametrize(("tag", "matrix", "origin"), [(2, "bt601", "assumed"), (1, "bt709", "file")])
def test_an_hd_stream_has_the_loader_s_colours_and_says_which(
    grpc_client: Client, tmp_path: Path, tag: int, matrix: str, origin: str
) -> None:
    """H.264 by the defaults of libx264; a matrix of 2 is no tag."""
    path = write_video(
        tmp_path / "1080p.mp4",
        "libx264",
        change=lambda stream: setattr(stream.codec_context, "colorspace", tag),
        pictures=wandering((1080, 1920), frames=6, step=20),
    )
    with grpc_client.stream(path, pipeline="strided") as frames:
        assert (frames.color.matrix, frames.color.matrix_from) == (matrix, origin), "the opening event says it"
        shown = list(frames)
        assert str(frames.color).startswith(f"{matrix} ({origin}), limited (")
    assert [one.frame_index for one in shown] == [0, 2, 4], "the pipeline has a stride"
    results = [one.tensors["scores"][np.argsort(one.tensors["class_ids"])] for one in shown]
    for rule, same in ((ColorRule(), True), (ColorRule(matrix="bt709" if matrix == "bt601" else "bt601"), False)):
        assert np.allclose(results, scores_of(path, rule)[::2], atol=1e-5) == same


def test_parity_compares_a_server_s_stream_with_the_loader(server: SharedServer, tmp_path: Path, clip: Path) -> None:
    pipeline_file = server.pipeline_file("streamed")
    options = Options(
        pipeline_file=pipeline_file, repository=server.repository, clips=[clip], frames=4, against=["none"],
        url=server.grpc_address,
    )  # fmt: skip
    report = run(options)
    assert report.within, report.problems
    loader, served = report.subjects
    assert (served.name, served.forms, served.predictions) == ("server", ["streamed_video"], 4)
    # The server runs the same code on the same device: equal figures to the last digits of float32.
    assert loader.logits is not None
    assert served.logits is not None
    assert served.logits.max == pytest.approx(loader.logits.max, abs=1e-5)
    # A server that was built with another matrix than the file says now.
    content = yaml.safe_load(pipeline_file.read_text())
    content["video"]["color"] = {"matrix": "bt709"}
    (tmp_path / "streamed.yaml").write_text(yaml.safe_dump(content))
    report = run(replace(options, pipeline_file=tmp_path / "streamed.yaml"))
    assert not report.within
    (problem,) = report.problems
    assert "by bt601 (assumed), limited (assumed), the pipeline file by bt709 (chosen)" in problem
    assert report.subjects[1].logits.max > 0.01
    (tmp_path / "not_served.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(CannotCompare, match="has none of the models not_served_video ready"):
        run(replace(options, pipeline_file=tmp_path / "not_served.yaml"))
