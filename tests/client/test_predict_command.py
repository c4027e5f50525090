"""``onestream predict``: what it prints and draws, and how it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from client_fakes import FakeTransport, classification
from patience import PATIENCE_S
from predict_runs import connect_to
from predict_runs import predict as run
from shared_server import SharedServer
from terminal_runs import on_terminal

from onestream.cli.options import read_inputs
from onestream.client import BadImage, ModelNotFound, Tensors

SCRIPT = "import typer; from onestream.cli.predict import predict; typer.run(predict)"
COMMAND = (sys.executable, "-c", SCRIPT, "--pipeline", "toy_shown")
LABELS = classification(("espresso", 967, 0.953), ("[red]cup", 968, 0.02))


def answer(_model: str, data: bytes) -> Tensors:
    if data == b"bad":
        raise BadImage("corrupt", "the file ends after 3 bytes")
    return LABELS


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "below").mkdir()
    for name, data in {
        "b.jpg": b"good",
        "a.JPEG": b"good",
        "c[1].png": b"bad",
        "c1.png": b"good",
        "below/d.webp": b"good",
        "notes.txt": b"text",
        "movie.mp4": b"film",
    }.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> FakeTransport:
    return connect_to(monkeypatch, answer)


@pytest.mark.usefixtures("transport")
def test_a_table_of_what_was_seen(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos)
    result = run("c[1].png", "b.jpg", "a.JPEG")
    assert result.exit_code == 1
    assert result.stderr.startswith("c[1].png: bad image (corrupt): the file ends after 3 bytes\n")
    rows = [line for line in result.stdout.splitlines() if "espresso" in line]
    assert len(rows) == 2
    assert "b.jpg" in rows[0]
    assert "0.953" in rows[0]
    assert "a.JPEG" in rows[1]
    assert "cup" not in result.stdout
    assert run("b.jpg").stderr == ""
    assert run("c[1].png").stdout == ""


@pytest.mark.usefixtures("transport")
def test_more_labels_on_demand_and_markup_in_labels_is_text(photos: Path) -> None:
    assert "[red]cup" in run(photos / "b.jpg", "--top", 2).stdout
    fields = json.loads(run(photos / "b.jpg", "--top", 5, "--json").stdout)
    assert (fields["labels"], fields["class_ids"], len(fields["scores"])) == (["espresso", "[red]cup"], [967, 968], 2)


@pytest.mark.usefixtures("transport")
def test_json_has_one_object_for_each_image_and_errors_are_objects_too(photos: Path) -> None:
    result = run(photos / "b.jpg", photos / "c[1].png", photos / "none.jpg", "--json")
    good, bad, missing = map(json.loads, result.stdout.splitlines())
    assert good["path"] == str(photos / "b.jpg")
    assert good["labels"] == ["espresso"]
    assert good["class_ids"] == [967]
    assert good["scores"] == [pytest.approx(0.953)]
    assert good["model"] == "classify"
    assert good["latency_ms"] >= 0
    assert bad["error"] == {
        "type": "BadImage",
        "message": "bad image (corrupt): the file ends after 3 bytes",
        "code": "corrupt",
        "reason": "the file ends after 3 bytes",
    }
    assert missing["error"]["type"] == "UnreadableInput"
    assert result.exit_code == 1
    assert "2 of 3 images failed" in result.stderr


@pytest.mark.usefixtures("transport")
def test_directories_and_patterns(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos)

    def sources(*arguments: str) -> list[str]:
        return [json.loads(line)["path"] for line in run(*arguments, "--json").stdout.splitlines()]

    assert sources(".") == ["a.JPEG", "b.jpg", "below/d.webp", "c1.png", "c[1].png"]
    assert sources("*.jpg", "below") == ["b.jpg", "below/d.webp"]
    assert sources("**/*.webp") == ["below/d.webp"]
    assert sources("c[1].png") == ["c[1].png"]
    assert sources("notes.txt") == ["notes.txt"]
    assert sources("*.gif") == ["*.gif"]


@pytest.mark.usefixtures("transport")
def test_files_that_are_not_named_like_images_are_counted_and_named(photos: Path) -> None:
    (photos / "c[1].png").unlink()
    result = run(photos, "--json")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 4
    assert result.stderr == (
        f"passed over 2 files that are not named like an image: '{photos}/movie.mp4', '{photos}/notes.txt'; "
        "--all tries every file\n"
    )
    result = run(photos, "--json", "--all")
    assert [Path(json.loads(line)["path"]).name for line in result.stdout.splitlines()] == [
        "a.JPEG", "b.jpg", "d.webp", "c1.png", "movie.mp4", "notes.txt",
    ]  # fmt: skip
    assert result.stderr == ""
    (photos / "below" / "d.webp").rename(photos / "below" / "d.gif")
    nothing = run(photos / "below")
    assert nothing.exit_code == 2
    assert "expected names that end in .bmp, " in nothing.stderr
    assert f"; passed over 1 file that is not named like an image: '{photos}/below/d.gif'; --all" in nothing.stderr


def test_options_reach_the_client(transport: FakeTransport, photos: Path) -> None:
    result = run(photos / "b.jpg", "--pipeline", "classify_fused", "--timeout-s", 3, "--shared-memory", "--json")
    assert json.loads(result.stdout)["model"] == "classify_fused"
    request, timeout_s = transport.inferences[0]
    assert request.model == "classify_fused"
    assert round(timeout_s) == 3
    assert not isinstance(request.image, bytes)


def test_without_the_option_an_image_may_take_what_the_pipeline_states(transport: FakeTransport, photos: Path) -> None:
    transport.parameters["timeout_s"] = "60"
    assert run(photos / "b.jpg").exit_code == 0
    ((_, timeout_s),) = transport.inferences
    assert 10 < timeout_s <= 60


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing argument"),
        (["{photos}/below/empty"], "no images in"),
        (["{photos}/b.jpg", "--url", "ftp://host"], "scheme 'ftp'"),
        (["{photos}/b.jpg", "--in-flight", "0"], "in-flight"),
        (["{photos}/b.jpg", "--url", "http://127.0.0.1:{port}"], "cannot reach http://127.0.0.1"),
        (["{photos}/b.jpg", "--url", "127.0.0.1:{port}"], "cannot reach grpc://127.0.0.1"),
    ],
)
def test_what_cannot_start_exits_with_two(photos: Path, arguments: list[str], words: str) -> None:
    (photos / "below" / "empty").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    result = run(*[argument.format(photos=photos, port=port) for argument in arguments])
    assert result.exit_code == 2
    assert words in result.stderr.replace("\n", " ")
    assert result.stdout == ""


def test_an_unknown_pipeline_exits_with_two(
    transport: FakeTransport, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(model: str, *, timeout_s: float) -> dict[str, object]:  # noqa: ARG001
        raise ModelNotFound(f"model {model!r} is not found", status="NOT_FOUND")

    monkeypatch.setattr(transport, "model_config", unknown)
    result = run(photos / "b.jpg", "--pipeline", "clasify")
    assert result.exit_code == 2
    assert "'clasify'" in result.stderr


@pytest.mark.needs_triton
def test_against_a_real_server_with_progress_on_a_terminal(toy_server: SharedServer, photos: Path) -> None:
    """Progress goes to the terminal on stderr, results alone to stdout."""
    out = photos / "out.txt"
    code, shown = on_terminal([*COMMAND, ".", "--url", toy_server.http_url, "--json"], cwd=photos, stdout=out)
    assert code == 0
    assert [json.loads(line)["class_ids"][0] for line in out.read_text().splitlines()] == [4, 4, 4, 4, 3]
    assert "Predicting" in shown
    assert "espresso" not in shown


@pytest.mark.needs_triton
def test_no_progress_between_json_lines_on_one_terminal(toy_server: SharedServer, photos: Path) -> None:
    _, shown = on_terminal([*COMMAND, ".", "--url", toy_server.http_url, "--json"], cwd=photos)
    *lines, passed_over = shown.splitlines()
    sources = [json.loads(line)["path"] for line in lines]
    assert passed_over.startswith("passed over 2 files")
    assert sources == ["a.JPEG", "b.jpg", "below/d.webp", "c1.png", "c[1].png"]


@pytest.mark.needs_triton
def test_ctrl_c_ends_quickly_and_without_a_trace(toy_server: SharedServer, tmp_path: Path) -> None:
    for index in range(20):
        (tmp_path / f"{index:02}.jpg").write_bytes(b"quick" if index == 0 else b"sleep 1")
    process = subprocess.Popen(
        [*COMMAND, ".", "--url", toy_server.grpc_url, "--json", "--in-flight", "2", "--shared-memory"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert json.loads(process.stdout.readline())["path"] == "00.jpg"
    process.send_signal(signal.SIGINT)
    shown, complaints = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert len(shown.splitlines()) < 19, "it went on to the end"
    # On a busy machine a warning may stand before it: the server still holds a region of a sleeping request.
    assert complaints.strip().splitlines()[-1].strip() == "interrupted"
    assert "Traceback" not in complaints
    assert list(Path("/dev/shm").glob(f"onestream_{process.pid}_*")) == []


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["points"], "--input points: expected NAME=NUMBERS in JSON, NAME=FILE.npy or NAME=PHOTO"),
        (["points=[1, 2"], "--input points=[1, 2: expected NAME=NUMBERS"),
        (["points=nowhere.npy"], "--input points=nowhere.npy: No such file or directory"),
        (["points=broken.npy"], "--input points=broken.npy: expected"),
        (["points=1", "points=2"], "--input points is given twice"),
    ],
)
def test_inputs_that_cannot_be_read(
    photos: Path, transport: FakeTransport, monkeypatch: pytest.MonkeyPatch, given: list[str], named: str
) -> None:
    monkeypatch.chdir(photos)
    Path("broken.npy").write_bytes(b"text")
    result = run("b.jpg", *(part for one in given for part in ("--input", one)))
    assert result.exit_code == 2
    assert named in result.stderr
    assert not transport.inferences


def test_parameters_go_with_every_image(photos: Path, transport: FakeTransport) -> None:
    run("--parameter", "top_k=1", "--parameter", "score_threshold=0.5", photos / "b.jpg", photos / "a.JPEG")
    assert [request.metadata.parameters for request, _ in transport.inferences] == [
        {"top_k": 1, "score_threshold": 0.5}
    ] * 2
    for given in ("top_k", "top_k=one", "priority=1", "x=nan", "x=1e300"):
        result = run("--parameter", given, photos / "b.jpg")
        assert result.exit_code == 2, result.stdout
        assert len(result.stderr.splitlines()) == 1
    assert len(transport.inferences) == 2


def test_a_file_of_numbers_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive under another name, and a header that claims more than any memory holds."""
    monkeypatch.chdir(tmp_path)
    archive, huge = tmp_path / "archive.npy", tmp_path / "huge.npy"
    with archive.open("wb") as file:
        np.savez(file, a=np.zeros(1))
    with huge.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (2**50,)})
    for path in (archive, huge):
        with pytest.raises(
            ValueError, match=rf"{path.name}: expected NAME=NUMBERS in JSON, NAME=FILE.npy or NAME=PHOTO"
        ):
            read_inputs([f"x={path.relative_to(tmp_path)}"])


def test_numbers_may_be_longer_than_the_name_of_a_file() -> None:
    tokens = list(range(100))
    assert read_inputs([f"tokens={tokens}"]) == {"tokens": tokens}
    with pytest.raises(ValueError, match=r"--input second=gone.jpg: expected .* or NAME=PHOTO"):
        read_inputs(["second=gone.jpg"])
