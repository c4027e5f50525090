"""``onestream stream``: what it prints and writes, and how it ends."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clip_files import begin_at, every_frame, turn, write_video
from fake_server import FakeServer
from patience import wait_until
from stream_fakes import annotated, app, read, run
from terminal_runs import before_no_reader, on_terminal
from typer.testing import CliRunner, Result

from onestream.cli.annotate import AnnotatedVideo
from onestream.client.video import File, FrameResult

SCRIPT = "import typer; from onestream.cli.stream.command import stream; typer.run(stream)"


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(
        tmp_path_factory.mktemp("clips") / "clip.mp4",
        "libx264",
        options={"g": "10", "bf": "2"},
        count=30,
        size_hw=(192, 256),
    )


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_table_at_the_end(server: FakeServer, clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clip.parent)
    result = run(server, "clip.mp4", "clip.mp4")
    assert result.exit_code == 0
    rows = [line.split("│")[1:-1] for line in result.stdout.splitlines() if "clip.mp4" in line]
    assert len(rows) == 2
    for row in rows:
        name, frames, _, p50, p99, dropped, concealed, ended = (cell.strip() for cell in row)
        assert (name, frames, dropped, concealed, ended) == ("clip.mp4", "30", "3", "1", "done")
        assert 0 < float(p50) <= float(p99)
    assert result.stdout.splitlines()[-1].strip() == "colours: bt601 (assumed), limited (file)"


def test_a_reader_that_has_gone_ends_it_quietly(server: FakeServer, clip: Path) -> None:
    assert before_no_reader("stream", "--json", f"--url={server.url}", str(clip)) == (141, "")


def test_json_is_a_line_per_frame_and_one_at_the_end(server: FakeServer, clip: Path) -> None:
    result = run(server, "--json", "--top", "2", clip)
    assert result.exit_code == 0
    *frames, end = lines(result)
    assert [frame["frame_index"] for frame in frames] == list(range(30))
    assert frames[0]["source"] == str(clip)
    assert (frames[7]["labels"], frames[7]["class_ids"]) == (["class 7", "other"], [7, 1])
    assert frames[7]["scores"] == pytest.approx([0.9, 0.1])
    assert frames[3]["latency_ms"] > 0
    assert (end["ended"], end["truncated"], end["results"], end["decoded"]) == ("done", False, 30, 30)
    assert end["gaps"] == []
    assert end["color"] == {"matrix": "bt601", "range": "limited", "matrix_from": "assumed", "range_from": "file"}


def test_a_failed_stream_does_not_end_the_others(server: FakeServer, clip: Path) -> None:
    result = run(server, "--json", clip, "/nowhere/clip.mp4")
    assert result.exit_code == 1
    found = lines(result)
    assert sum("frame_index" in line for line in found) == 30
    (error,) = (line for line in found if "error" in line)
    assert error["source"] == "/nowhere/clip.mp4"
    assert error["error"]["type"] == "UnreadableInput"
    assert "1 of 2 streams failed" in result.stderr
    assert "No such file" in result.stderr


def test_a_truncated_file_gives_its_results_and_fails(server: FakeServer, tmp_path: Path) -> None:
    path = write_video(tmp_path / "cut.mp4", "libx264", container_options={"movflags": "faststart"}, count=45)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    out = tmp_path / "out.mp4"
    result = run(server, "--json", path, "-o", out)
    assert result.exit_code == 1
    *frames, error, end = lines(result)
    assert 0 < len(frames) == end["results"] < 45
    assert error["error"]["type"] == "TruncatedInput"
    assert end["truncated"] is True
    for said in (error["error"]["message"], end["ended"], result.stderr):
        assert f"cut.mp4: truncated: the file ends after {path.stat().st_size} of " in said
    # The last picture is there in part, and may be left out.
    assert len(every_frame(out)) in (len(frames) - 1, len(frames))


def test_nothing_could_be_started(server: FakeServer, clip: Path, tmp_path: Path) -> None:
    server.behaviour.refuse = ("too_large", "its pictures are too large")
    result = run(server, "--json", clip)
    assert result.exit_code == 2
    error, end = lines(result)
    assert error["error"]["code"] == "too_large"
    assert end["results"] == 0
    for wrong in (["--url", "nonsense://x", clip], ["http://somewhere/x.mp4"], ["--url", "http://127.0.0.1:1", clip]):
        assert run(server, *wrong).exit_code == 2
    server.behaviour.refuse = None
    for name in ("nowhere/out.mp4", "out.unknown"):
        result = run(server, clip, "-o", tmp_path / name)
        assert result.exit_code == 2
        assert "cannot be written" in result.stderr


def test_standard_input(server: FakeServer, tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.h264", "libx264", count=10)
    result = CliRunner().invoke(app, ["--url", server.url, "--json", "-"], input=path.read_bytes())
    assert result.exit_code == 0
    assert len(lines(result)) == 11


def test_ctrl_c_ends_cleanly(server: FakeServer, clip: Path, tmp_path: Path) -> None:
    # Slow enough that a busy machine sends the signal before the stream ends by itself.
    server.behaviour.frame_s = 1.0
    out = tmp_path / "out.mp4"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "--url", server.url, "--json", "-o", str(out), str(clip)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A suite that runs in the background has Ctrl-C ignored, which children inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    first = [json.loads(process.stdout.readline()) for _ in range(5)]
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert [line["frame_index"] for line in first] == [0, 1, 2, 3, 4]
    assert json.loads(rest.splitlines()[-1])["ended"] == "closed"
    # The video holds at least what was seen.
    assert len(every_frame(out)) >= 5
    wait_until(lambda: server.streams[0].cancelled, "the server sees the cancel")


def test_progress_is_live_on_a_terminal(
    server: FakeServer, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.behaviour.frame_s = 0.03
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    command = [sys.executable, "-c", SCRIPT, "--url", server.url, str(clip)]
    code, shown = on_terminal(command, cwd=tmp_path, stdout=tmp_path / "out")
    assert code == 0
    assert "p99 ms" in shown
    assert "class " in shown


def test_the_annotated_video_has_every_frame_with_its_label(server: FakeServer, clip: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.mp4"
    assert run(server, clip, "-o", out).exit_code == 0
    for copy, frame in zip(every_frame(out), every_frame(clip), strict=True):
        # MP4 rounds times to its own time base.
        assert copy.time == pytest.approx(frame.time, abs=1e-3)
        levels, before = (one.to_ndarray(format="rgb24").astype(int) for one in (copy, frame))
        differing = (abs(levels - before).max(axis=2) > 100).any(axis=1)
        assert differing[8:20].any()
        assert not differing[60:].any()


def test_labels_change_with_their_frames(clip: Path, tmp_path: Path) -> None:
    """Of every fifth frame there is a result, whose label has a line more than the one before."""
    format, packets = read(File(clip))
    out = tmp_path / "out.mp4"
    video = AnnotatedVideo(out, lambda frame: "\n".join(["label"] * (frame.frame_index // 5 + 1)))
    times = sorted(packet.pts for packet in packets if packet.pts is not None)
    for number, packet in enumerate(packets):
        video.sent(packet)
        if number % 5 == 4:
            index = number - 4
            video.show(FrameResult(index, times[index], None, 1.0, 1.0, {}), format)
    video.close()
    # The left margin of a label is black; no pixel of the pictures is darker than 40.
    margins = [frame.to_ndarray(format="rgb24")[:, 5:7].mean(axis=(1, 2)) for frame in every_frame(out)]
    heights = [int((margin < 30).sum()) for margin in margins]
    groups = [heights[at : at + 5] for at in range(0, 30, 5)]
    # A line is about 12 pixels high; coding blurs its end by a pixel or two.
    assert all(max(group) - min(group) < 4 for group in groups)
    assert all(8 <= after[0] - before[0] <= 18 for before, after in itertools.pairwise(groups))


def test_several_sources_write_several_videos_turned_as_shown(server: FakeServer, clip: Path, tmp_path: Path) -> None:
    turned = turn(tmp_path / "turned.mp4", clip, (0, 1, -1, 0))
    assert run(server, clip, turned, "-o", tmp_path / "out.mp4").exit_code == 0
    for name, size in (("out-0.mp4", (256, 192)), ("out-1.mp4", (192, 256))):
        assert [(frame.width, frame.height) for frame in every_frame(tmp_path / name)] == [size] * 30


def test_the_copy_begins_where_the_edit_list_does(clip: Path, tmp_path: Path) -> None:
    format, packets = read(File(begin_at(tmp_path / "cut.mp4", clip, 4)))
    annotated(tmp_path / "out.mp4", packets, format)
    assert len(every_frame(tmp_path / "out.mp4")) == len(packets) - 4
