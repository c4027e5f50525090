"""AsyncClient and `onestream bulk` behind `onestream proxy`: a real nginx with TLS and tokens, a real Triton."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import detectors
import pytest
from clip_files import write_video
from gate import CLASSIFY_MODELS, ROOT, Gate, gate_before
from patience import PATIENCE_S
from shared_server import CLASSIFY, SharedServer
from test_detect_served import CELLS

from onestream.serving.proxy.tokens import add_token

pytestmark = [
    pytest.mark.needs_triton,
    pytest.mark.needs_nginx,
    pytest.mark.slow,
    pytest.mark.serves(CLASSIFY, CELLS),
]

PHOTOS = sorted((ROOT / "examples" / "photos").glob("*.jpg"))
COFFEE = ROOT / "examples" / "photos" / "coffee.jpg"

# In a process of its own: gRPC reads once whom it trusts.
SCRIPT = """
import asyncio, os, sys
from onestream.client import AsyncClient, OnestreamError

async def main(url, *files):
    async with AsyncClient(url, token=os.environ.get("ONESTREAM_TOKEN"), retries=0) as client:
        print("ready", await client.is_ready())
        if files[0].endswith(".mp4"):
            async with client.stream(files[0]) as frames:
                print(len([frame async for frame in frames]))
            return
        print((await client.server_info()).name)
        async for item in client.classify_many(files, in_flight=4):
            print(item.unwrap().top.label)

try:
    asyncio.run(main(*sys.argv[1:]))
except OnestreamError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def gate(server: SharedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    models = (*CLASSIFY_MODELS, "cells", "cells_fused")
    with gate_before(server, tmp_path_factory.mktemp("gate"), models=models) as opened:
        yield opened


def ask(gate: Gate, scheme: str, *files: Path, token: str | None) -> list[str]:
    """The lines that the script prints."""
    return printed(gate, [sys.executable, "-c", SCRIPT, gate.url(scheme), *map(str, files)], token)


def printed(gate: Gate, command: list[str], token: str | None) -> list[str]:
    environment = gate.environment(token)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def json_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---------------------------------------------------------------- AsyncClient


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_an_async_client_with_a_token_gets_results(gate: Gate, scheme: str) -> None:
    ready, name, *found = ask(gate, scheme, *[COFFEE] * 9, token=gate.token)
    assert (ready, name, found) == ("ready True", "triton", ["espresso"] * 9)


@pytest.mark.parametrize(("scheme", "token"), [("https", None), ("grpcs", "0" * 64)], ids=["no token", "a wrong token"])
def test_an_async_client_says_that_a_token_is_missing(gate: Gate, scheme: str, token: str | None) -> None:
    ready, refused = ask(gate, scheme, COFFEE, token=token)
    assert ready == "ready True", "health is open"
    assert refused.startswith("ServerRefused ")
    assert "refused (UNAUTHENTICATED): this server needs a token" in refused
    assert "expected a token that it knows" in refused


def test_the_streams_of_an_async_client_send_the_token(gate: Gate, tmp_path: Path) -> None:
    """They have a connection of their own."""
    clip = write_video(tmp_path / "clip.mp4", "libx264", count=12, size_hw=(240, 320))
    assert ask(gate, "grpcs", clip, token=gate.token) == ["ready True", "12"]
    assert "UNAUTHENTICATED" in ask(gate, "grpcs", clip, token=None)[1]


# ---------------------------------------------------------------- objects

CALLS = """
import json, os, sys
import numpy as np
from onestream.client import Client

url, side = sys.argv[1], int(sys.argv[2])
black = np.zeros((side, side, 3), np.uint8)
one, everywhere = black.copy(), black.copy()
one[:8, 8:16, 0], everywhere[..., 0] = 255, 255
with Client(url, token=os.environ["ONESTREAM_TOKEN"], timeout_s=60) as client:
    for form in ("cells", "cells_fused"):
        print(json.dumps([client.detect(picture, pipeline=form).to_dict() for picture in (black, one, everywhere)]))
"""


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_no_object_and_many_come_through(gate: Gate, scheme: str) -> None:
    """In a process of its own, since gRPC reads whom it trusts once."""
    command = [sys.executable, "-c", CALLS, gate.url(scheme), str(detectors.SIDE)]
    forms = [json.loads(line) for line in printed(gate, command, gate.token)]
    assert len(forms) == 2
    for nothing, one, everywhere in forms:
        assert nothing["boxes"] == []
        assert one["boxes"] == [[8, 0, 16, 8]]
        assert len(everywhere["boxes"]) == detectors.CELLS**2
        assert everywhere["image_size"] == [detectors.SIDE, detectors.SIDE]


# ---------------------------------------------------------------- onestream bulk


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_a_bulk_run_with_a_token_writes_every_row(gate: Gate, scheme: str, tmp_path: Path) -> None:
    """The token is in the environment, or an option."""
    table = tmp_path / "out.jsonl"
    token = {"token": gate.token} if scheme == "https" else {"token": None}
    option = () if scheme == "https" else ("--token", gate.token)
    done = gate.onestream("bulk", str(COFFEE.parent), "--to", str(table), *option, scheme=scheme, **token)
    assert done.returncode == 0, done.stderr
    labels = {Path(row["path"]): row["labels"][0]["label"] for row in json_rows(table)}
    assert list(labels) == PHOTOS
    assert labels[COFFEE] == "espresso"


@pytest.mark.parametrize(("scheme", "token"), [("https", None), ("grpcs", "0" * 64)], ids=["no token", "a wrong token"])
def test_a_bulk_run_without_a_token_begins_nothing(gate: Gate, scheme: str, token: str | None, tmp_path: Path) -> None:
    done = gate.onestream("bulk", str(COFFEE), "--to", str(tmp_path / "out.csv"), scheme=scheme, token=token)
    assert done.returncode == 2
    assert "refused (UNAUTHENTICATED): this server needs a token" in done.stderr
    assert "ONESTREAM_TOKEN" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_token_is_taken_back_goes_on_with_another(gate: Gate, tmp_path: Path) -> None:
    before = gate.token_file.read_text()
    old = add_token(gate.token_file, "old")
    gate.read_tokens_until(old, 200)
    table, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl.journal"
    arguments = ("bulk", "-", "--to", str(table), "--in-flight", "2")
    command = [sys.executable, "-m", "onestream", *arguments, "--url", gate.url("grpcs")]
    listed = ""
    with subprocess.Popen(
        command, cwd=ROOT, env=gate.environment(old), stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdin is not None
        assert run.stderr is not None
        deadline = time.monotonic() + PATIENCE_S
        while run.poll() is None:
            assert time.monotonic() < deadline
            try:
                run.stdin.write(f"{COFFEE}\n")
                run.stdin.flush()
            except BrokenPipeError:
                break
            listed += f"{COFFEE}\n"
            if gate.token_file.read_text() != before and journal.exists() and "espresso" in journal.read_text():
                gate.token_file.write_text(before)
                gate.read_tokens_until(old, 401)
            time.sleep(0.05)
        with contextlib.suppress(BrokenPipeError):
            run.stdin.close()
        said = run.stderr.read()
    assert run.returncode == 1
    assert "stopped after" in said
    assert "UNAUTHENTICATED" in said
    assert not table.exists()
    assert 0 < journal.read_text().count("espresso") < listed.count("\n")
    done = subprocess.run(
        command, cwd=ROOT, env=gate.environment(gate.token), input=listed, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "of an earlier run" in done.stderr
    assert [row["labels"][0]["label"] for row in json_rows(table)] == ["espresso"] * listed.count("\n")
