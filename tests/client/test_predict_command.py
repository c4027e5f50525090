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


@pytest.fixture(autouse=True)
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """They lie where the command runs."""
    monkeypatch.chdir(tmp_path)
    Path("below").mkdir()
    Path("empty").mkdir()
    for name in ("b.jpg", "a.JPEG", "c1.png", "below/d.webp"):
        Path(name).write_bytes(b"good")
    for name, data in {"c[1].png": b"bad", "notes.txt": b"text", "movie.mp4": b"film"}.items():
        Path(name).write_bytes(data)
    return tmp_path


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> FakeTransport:
    return connect_to(monkeypatch, answer)


@pytest.mark.usefixtures("transport")
def test_a_table_of_what_was_seen() -> None:
    """More labels on demand; markup in them is text."""
    result = run("c[1].png", "b.jpg", "a.JPEG")
    assert result.exit_code == 1
    assert result.stderr.startswith("c[1].png: bad image (corrupt): the file ends after 3 bytes\n")
    first, second = (line for line in result.stdout.splitlines() if "espresso" in line)
    assert "b.jpg" in first
    assert "0.953" in first
    assert "a.JPEG" in second
    assert "cup" not in result.stdout
    assert run("b.jpg").stderr == ""
    assert run("c[1].png").stdout == ""
    assert "[red]cup" in run("b.jpg", "--top", 2).stdout
    fields = json.loads(run("b.jpg", "--top", 5, "--json").stdout)
    assert (fields["labels"], fields["class_ids"], len(fields["scores"])) == (["espresso", "[red]cup"], [967, 968], 2)


@pytest.mark.usefixtures("transport")
def test_json_has_one_object_for_each_image_and_errors_are_objects_too() -> None:
    result = run("b.jpg", "c[1].png", "none.jpg", "--json")
    good, bad, missing = map(json.loads, result.stdout.splitlines())
    assert (good["path"], good["model"]) == ("b.jpg", "classify")
    assert (good["labels"], good["class_ids"], good["scores"]) == (["espresso"], [967], [pytest.approx(0.953)])
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


def paths(shown: str) -> list[str]:
    return [json.loads(line)["path"] for line in shown.splitlines()]


@pytest.mark.usefixtures("transport")
@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["."], ["a.JPEG", "b.jpg", "below/d.webp", "c1.png", "c[1].png"]),
        (["*.jpg", "below"], ["b.jpg", "below/d.webp"]),
        (["**/*.webp"], ["below/d.webp"]),
        (["c[1].png"], ["c[1].png"]),
        (["notes.txt"], ["notes.txt"]),
        (["*.gif"], ["*.gif"]),
        ([".", "--all"], ["a.JPEG", "b.jpg", "below/d.webp", "c1.png", "c[1].png", "movie.mp4", "notes.txt"]),
    ],
)
def test_directories_and_patterns(given: list[str], found: list[str]) -> None:
    assert paths(run(*given, "--json").stdout) == found


@pytest.mark.usefixtures("transport")
def test_files_that_are_not_named_like_images_are_counted_and_named() -> None:
    Path("c[1].png").unlink()
    assert run(".", "--json").stderr == (
        "passed over 2 files that are not named like an image: './movie.mp4', './notes.txt'; --all tries every file\n"
    )
    assert run(".", "--json", "--all").stderr == ""
    Path("below/d.webp").rename("below/d.gif")
    nothing = run("below")
    assert nothing.exit_code == 2
    assert "expected names that end in .bmp, " in nothing.stderr
    assert "; passed over 1 file that is not named like an image: 'below/d.gif'; --all" in nothing.stderr


def test_options_reach_the_client(transport: FakeTransport) -> None:
    """Without that option an image may take what the pipeline states."""
    transport.parameters["timeout_s"] = "60"
    result = run("b.jpg", "--pipeline", "classify_fused", "--timeout-s", 3, "--shared-memory", "--json")
    assert json.loads(result.stdout)["model"] == "classify_fused"
    assert run("b.jpg").exit_code == 0
    (request, timeout_s), (_, stated_s) = transport.inferences
    assert request.model == "classify_fused"
    assert round(timeout_s) == 3
    assert not isinstance(request.image, bytes)
    assert 10 < stated_s <= 60


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing argument"),
        (["empty"], "no images in"),
        (["b.jpg", "--url", "ftp://host"], "scheme 'ftp'"),
        (["b.jpg", "--in-flight", "0"], "in-flight"),
        (["b.jpg", "--url", "http://127.0.0.1:{port}"], "cannot reach http://127.0.0.1"),
        (["b.jpg", "--url", "127.0.0.1:{port}"], "cannot reach grpc://127.0.0.1"),
    ],
)
def test_what_cannot_start_exits_with_two(arguments: list[str], words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    result = run(*[argument.format(port=port) for argument in arguments])
    assert result.exit_code == 2
    assert words in result.stderr.replace("\n", " ")
    assert result.stdout == ""


def test_an_unknown_pipeline_exits_with_two(transport: FakeTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(model: str, *, timeout_s: float) -> dict[str, object]:  # noqa: ARG001
        raise ModelNotFound(f"model {model!r} is not found", status="NOT_FOUND")

    monkeypatch.setattr(transport, "model_config", unknown)
    result = run("b.jpg", "--pipeline", "clasify")
    assert result.exit_code == 2
    assert "'clasify'" in result.stderr


@pytest.mark.needs_triton
def test_progress_goes_to_a_terminal_and_not_between_json_lines(toy_server: SharedServer, photos: Path) -> None:
    """On stderr; results alone go to stdout."""
    out, command = photos / "out.txt", [*COMMAND, ".", "--url", toy_server.http_url, "--json"]
    code, shown = on_terminal(command, cwd=photos, stdout=out)
    assert code == 0
    assert [json.loads(line)["class_ids"][0] for line in out.read_text().splitlines()] == [4, 4, 4, 4, 3]
    assert "Predicting" in shown
    assert "espresso" not in shown
    out.unlink()
    _, shown = on_terminal(command, cwd=photos)
    *lines, passed_over = shown.splitlines()
    assert passed_over.startswith("passed over 2 files")
    assert paths("\n".join(lines)) == ["a.JPEG", "b.jpg", "below/d.webp", "c1.png", "c[1].png"]


@pytest.mark.needs_triton
def test_ctrl_c_ends_quickly_and_without_a_trace(toy_server: SharedServer) -> None:
    Path("many").mkdir()
    for index in range(20):
        Path(f"many/{index:02}.jpg").write_bytes(b"quick" if index == 0 else b"sleep 1")
    process = subprocess.Popen(
        [*COMMAND, ".", "--url", toy_server.grpc_url, "--json", "--in-flight", "2", "--shared-memory"],
        cwd="many",
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


EXPECTED = "expected NAME=NUMBERS in JSON, NAME=FILE.npy or NAME=PHOTO"


@pytest.mark.parametrize(
    ("option", "given", "named"),
    [
        ("--input", ["points"], f"--input points: {EXPECTED}"),
        ("--input", ["points=[1, 2"], f"--input points=[1, 2: {EXPECTED}"),
        ("--input", ["points=nowhere.npy"], "--input points=nowhere.npy: No such file or directory"),
        ("--input", ["points=broken.npy"], f"--input points=broken.npy: {EXPECTED}"),
        # An archive under another name, and a header that claims more than any memory holds.
        ("--input", ["points=archive.npy"], f"--input points=archive.npy: {EXPECTED}"),
        ("--input", ["points=huge.npy"], f"--input points=huge.npy: {EXPECTED}"),
        ("--input", ["second=gone.jpg"], f"--input second=gone.jpg: {EXPECTED}"),
        ("--input", ["points=1", "points=2"], "--input points is given twice"),
        *(("--parameter", [bad], "parameter") for bad in ("top_k", "top_k=one", "priority=1", "x=nan", "x=1e300")),
    ],
)
def test_inputs_and_parameters_that_cannot_be_read(
    transport: FakeTransport, option: str, given: list[str], named: str
) -> None:
    Path("broken.npy").write_bytes(b"text")
    with Path("archive.npy").open("wb") as archive, Path("huge.npy").open("wb") as huge:
        np.savez(archive, a=np.zeros(1))
        np.lib.format.write_array_header_1_0(huge, {"descr": "<f8", "fortran_order": False, "shape": (2**50,)})
    result = run("b.jpg", *(part for one in given for part in (option, one)))
    assert result.exit_code == 2
    assert named in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not transport.inferences


def test_parameters_go_with_every_image(transport: FakeTransport) -> None:
    run("--parameter", "top_k=1", "--parameter", "score_threshold=0.5", "b.jpg", "a.JPEG")
    assert [request.metadata.parameters for request, _ in transport.inferences] == [
        {"top_k": 1, "score_threshold": 0.5}
    ] * 2


def test_numbers_may_be_longer_than_the_name_of_a_file() -> None:
    tokens = list(range(100))
    assert read_inputs([f"tokens={tokens}"]) == {"tokens": tokens}
