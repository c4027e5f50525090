"""`onestream top` in a terminal, in a pipe and as JSON, of a server that shows what the test wants, or a real one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from metrics_pages import Shown, of_model, page, showing
from patience import PATIENCE_S, wait_until
from shared_server import Served, SharedServer
from terminal_runs import before_no_reader
from terminals import Terminal, terminal
from typer.testing import CliRunner, Result

from onestream.cli.main import app
from onestream.client import Client

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def requests(number: int) -> str:
    return page(
        of_model("own", requests=number, inferences=number, executions=number, duration_us=5000 * number)
        | {"nv_cpu_utilization": 0.5}
    )


@pytest.fixture
def shown() -> Iterator[Shown]:
    with showing(requests(1000)) as running:
        yield running


def start(*arguments: str) -> subprocess.Popen[str]:
    """`onestream top`, in pipes."""
    command = [sys.executable, "-m", "onestream", "top", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1"}, **pipes, text=True)


def interrupt(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Ctrl-C, which ends it well: what it wrote to its output and of errors."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    return out, err


@pytest.mark.parametrize("end", ["Q", "\x03", "SIGTERM"])
def test_a_terminal_is_filled_and_given_back(shown: Shown, end: str) -> None:
    with terminal("top", f"--metrics-url=127.0.0.1:{shown.port}", "--interval-s=0.2") as running:
        running.wait_for("own")
        assert running.in_alternate_screen
        assert not running.echoes
        assert running.lines[0].startswith(f"onestream top  {shown.url}")
        assert running.lines[0].endswith("q quits")
        assert running.lines[1].startswith("CPU 50%")
        running.type("x")
        running.read(0.5)
        assert running.process.poll() is None, "other keys do nothing"
        if end == "SIGTERM":
            running.process.terminate()
        else:
            running.type(end)
        assert running.wait() == 0
        assert not running.in_alternate_screen
        assert running.echoes


def own(terminal: Terminal) -> list[str]:
    """The cells of the model's row."""
    (row,) = (line.split() for line in terminal.lines if line.startswith("own"))
    return row


def test_a_terminal_shows_the_rate_of_the_last_interval_and_goes_on_when_a_server_is_back(shown: Shown) -> None:
    with terminal("top", f"--metrics-url={shown.url}", "--interval-s=2") as running:
        running.wait_for("own")
        shown.text = requests(3000)
        running.wait_for(" 5.0 ")
        # 2000 requests in 2 s, and what a busy machine is late or early.
        assert 500 < float(own(running)[1]) < 1100
        shown.stop()
        running.wait_for("Connection refused; trying again")
        assert not any(line.startswith("own") for line in running.lines), "old figures would look like new ones"
        shown.text = requests(5)
        shown.start()
        running.wait_for("own")
        assert own(running)[1] == "0.0", "what the new server counted before is no traffic of this interval"
        running.type("q")
        assert running.wait() == 0


def test_a_window_that_changes_is_filled_anew(shown: Shown) -> None:
    with terminal("top", f"--metrics-url={shown.url}", "--interval-s=0.2", columns=80, rows=10) as running:
        running.wait_for("share")
        for columns in (120, 50):
            running.resize(columns, 12)
            running.wait_for("own")
            # It draws four times a second: the first time it may not have known of the change yet.
            running.read(1.0)
            begins = [line.split()[0] if line else "" for line in running.lines]
            assert begins == ["onestream", "CPU", "", "latency", "model", "own"], "a folded line would be one more"
        running.type("q")
        assert running.wait() == 0


def test_a_reader_that_has_gone_ends_it_quietly(shown: Shown) -> None:
    assert before_no_reader("top", "--json", f"--metrics-url={shown.url}", "--interval-s=0.1") == (141, "")


def test_a_pipe_gets_one_table_after_another_without_control_codes(shown: Shown) -> None:
    """A lost server is reported once."""
    shown.status = 503
    process = start(f"--metrics-url={shown.url}", "--interval-s=0.1")
    wait_until(lambda: shown.asked >= 4)
    shown.status = 200
    asked = shown.asked
    wait_until(lambda: shown.asked >= asked + 5)
    out, err = interrupt(process)
    assert err.count("answers 503 Service Unavailable") == len(err.splitlines()) == 1
    assert "own" in out
    assert "\x1b" not in out
    assert out.count("waiting") >= 2
    assert max(map(len, out.splitlines())) <= 80


def test_json_is_a_line_for_each_interval_and_for_what_is_missing(shown: Shown) -> None:
    process = start(f"--metrics-url={shown.url}", "--interval-s=0.1", "--json")
    wait_until(lambda: shown.asked >= 4)
    shown.stop()
    assert process.stdout is not None
    lines = [json.loads(process.stdout.readline())]
    while "error" not in lines[-1]:
        lines.append(json.loads(process.stdout.readline()))
    assert interrupt(process)[1] == ""
    assert [model["name"] for model in lines[0]["models"]] == ["own"]
    assert 0 < lines[0]["seconds"] < 5
    assert lines[-1]["error"].startswith(f"no metrics from {shown.url}: ")
    assert lines[0]["time"] < lines[-1]["time"]


def test_once_is_one_interval_and_without_a_server_an_error(shown: Shown) -> None:
    def once(*options: str) -> Result:
        return CliRunner().invoke(app, ["top", f"--metrics-url={shown.url}", "--interval-s=0.1", "--once", *options])

    done = once("--json")
    assert done.exit_code == 0, done.output
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["models"][0]["inferences"] == 0
    assert shown.asked == 2
    shown.stop()
    for options in ([], ["--json"]):
        gone = once(*options)
        assert (gone.exit_code, gone.output) == (2, f"no metrics from {shown.url}: Connection refused\n")


def test_an_address_that_is_none_is_refused() -> None:
    for url in ("grpc://127.0.0.1:8001", "127.0.0.1:metrics", "http://", ""):
        result = CliRunner().invoke(app, ["top", f"--metrics-url={url}", "--once"])
        assert result.exit_code == 2
        assert f"--metrics-url takes http://HOST:PORT/metrics or HOST:PORT, not {url!r}" in result.output


def write_watched(folder: Path) -> None:
    """The pipeline *classify* by a name of its own, so that the requests of other tests are not counted."""
    shutil.copy(ROOT / "pipelines" / "classify.yaml", folder / "watched.yaml")


GOOD, BAD = 7, {"corrupt": 2, "unsupported_format": 3}


def metrics(server: SharedServer) -> str:
    with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
        return answer.read().decode()


@pytest.mark.needs_triton
@pytest.mark.serves(Served("watched", write_watched))
def test_the_numbers_are_what_was_sent(server: SharedServer) -> None:
    coffee = (ROOT / "examples" / "photos" / "coffee.jpg").read_bytes()
    sent = [coffee] * GOOD + [coffee[:3000]] * BAD["corrupt"] + [b"not an image"] * BAD["unsupported_format"]
    # Between the command and the server, so that its two readings fall before and after the requests.
    with showing(metrics(server)) as between:
        between.at_once = 1
        started_s = time.monotonic()
        process = start("--once", "--json", f"--metrics-url={between.url}", "--interval-s=0.5")
        wait_until(lambda: between.asked)
        with Client(server.grpc_address) as client:
            for pipeline in ("watched", "watched_fused"):
                answers = list(client.classify_many(sent, pipeline=pipeline, in_flight=4))
                assert sum(item.error is None for item in answers) == GOOD
        began_s = time.monotonic()
        # Models hand over their counters once a second.
        time.sleep(3)
        between.text = metrics(server)
        passed_s = time.monotonic() - began_s
        between.go_on.set()
        out, _ = process.communicate(timeout=PATIENCE_S)
    whole_s = time.monotonic() - started_s
    assert process.returncode == 0
    found = json.loads(out)
    models = {model["name"]: model for model in found["models"]}
    everything = GOOD + sum(BAD.values())
    ensemble, fused = models["watched"], models["watched_fused"]
    assert ensemble["inferences"] == GOOD
    assert ensemble["failures"] == {"OTHER": sum(BAD.values())}
    assert ensemble["bad_images"] == fused["bad_images"] == BAD
    # To Triton, an error that a Python model answers with is a success.
    assert fused["inferences"] == models["watched_preprocess"]["inferences"] == everything
    assert fused["failures"] == {}
    assert 1 <= fused["batch_size"] <= 4
    assert fused["latency_ms"] >= fused["queue_ms"] >= 0
    assert [step["name"] for step in fused["steps"]] == ["preprocess", "network", "postprocess"]
    assert sum(step["share"] for step in fused["steps"]) == pytest.approx(1)
    (preprocess,) = models["watched_preprocess"]["steps"]
    # Batches hold up to 4.
    assert everything / 4 <= preprocess["batches"] <= everything
    assert models["watched_postprocess"]["pending"] == 0
    assert 0 < found["memory_used_bytes"] < found["memory_total_bytes"]
    assert passed_s <= found["seconds"] <= whole_s, "its readings are before the requests and after the counters"
