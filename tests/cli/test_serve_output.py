"""What ``onestream serve`` prints where it does not even start, in both formats, and how Triton's log looks in each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.cli.serve.output import JsonOutput, TextOutput

REFUSED = "2026 [x] W1121 23:42:49.5 is no line of Triton"
LOADING = 'I1121 23:42:23.723970 16950 model_lifecycle.cc:472] "loading: classify:1"'
NOTICE = 'W1121 23:42:25.000001 16950 base.py:78] "classify: a JPEG carries an ICC profile (said once)"'
BAD_IMAGE = (
    'W1121 23:42:24.000001 16950 refusal_log.py:48] "classify: request a-1: bad image (corrupt): cut \\"short\\""'
)


def serve(*arguments: str) -> tuple[int, list[str]]:
    """Exit status, and the lines on stderr."""
    result = CliRunner().invoke(app, ["serve", "--repository", "/no/such/folder", *arguments])
    return result.exit_code, result.stderr.splitlines()


def test_text_is_for_people_and_json_is_one_object_a_line_to_the_last() -> None:
    reason = "the model repository /no/such/folder does not exist"
    status, (started, failed, *_) = serve()
    assert (status, started) == (2, "starting Triton with the models of /no/such/folder")
    assert failed.startswith(f"error: {reason}")
    status, lines = serve("--log-format", "json")
    started, failed = (json.loads(line) for line in lines)
    assert (status, started["level"], started["source"]) == (2, "info", "onestream")
    assert (failed["level"], failed["source"]) == ("error", "onestream")
    assert failed["message"].startswith(reason)
    assert failed["time"].endswith("Z")
    said = datetime.fromisoformat(failed["time"].removesuffix("Z") + "+00:00")
    # It was said during this test.
    assert timedelta(0) <= datetime.now(timezone.utc) - said < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--trace-rate", "5"], "--trace-rate needs --trace, the address of the collector"),
        (["--trace", "grpc://collector:4317"], "trace='grpc://collector:4317', expected a collector such as"),
        (["--host", "0.0.0.0"], "--host 0.0.0.0 lets other machines reach Triton itself"),
    ],
)
def test_refusals_come_in_the_format_asked_for(arguments: list[str], reason: str) -> None:
    status, (line,) = serve(*arguments)
    assert status == 2
    assert line.startswith(f"error: {reason}")
    status, (line,) = serve(*arguments, "--log-format", "json")
    assert status == 2
    assert json.loads(line)["message"].startswith(reason)


def test_tritons_log_in_text_is_as_it_is_or_what_was_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    for verbose in (True, False):
        output = TextOutput(verbose=verbose)
        for line in (LOADING, REFUSED, BAD_IMAGE, LOADING, NOTICE, NOTICE):
            output.log_line(line)
        output.stopped()
    told = ["  loading classify", "  classify: a JPEG carries an ICC profile (said once)"]
    shown = [LOADING, REFUSED, BAD_IMAGE, LOADING, NOTICE, NOTICE, "stopped", *told, "stopped"]
    assert capsys.readouterr().err.splitlines() == shown


def test_tritons_log_in_json_has_a_record_for_every_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output = JsonOutput(tmp_path)
    for line in (LOADING, REFUSED, BAD_IMAGE, "I1121 23:42:23.000000 1 server.cc:604] ", "+--+"):
        output.log_line(line)
    with pytest.raises(typer.Exit):
        output.failed("Triton ended", 1)
    records: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(record["level"], record["source"], record["message"]) for record in records] == [
        ("info", "triton", "loading: classify:1"),
        ("info", "triton", REFUSED),
        ("warning", "classify", 'bad image (corrupt): cut "short"'),
        ("info", "triton", "+--+"),
        ("error", "onestream", "Triton ended"),
    ]
    assert records[2]["request_id"] == "a-1"
    assert records[2]["time"].endswith("-11-21T23:42:24.000001Z")


@pytest.mark.parametrize(("log_format", "reader"), [("text", "gone"), ("json", "stuck")])
def test_the_command_ends_as_it_should_whoever_reads_it(log_format: str, reader: str) -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as end, open(writing, "wb") as pipe:
        if reader == "gone":
            end.close()
        else:
            fill(writing)
        command = [sys.executable, "-m", "onestream", "serve", "--repository=/no/such/folder"]
        with subprocess.Popen([*command, f"--log-format={log_format}"], stderr=pipe) as process:
            try:
                # Without help it ends within 5 s; stuck, it would not end at all.
                assert process.wait(timeout=60) == 2
            finally:
                process.kill()


def fill(pipe: int) -> None:
    """Write into a pipe until it is full."""
    os.set_blocking(pipe, False)
    with suppress(BlockingIOError):
        while os.write(pipe, bytes(1)):
            pass
    os.set_blocking(pipe, True)
