"""Our clients and commands behind `onestream proxy`: a real nginx with TLS and tokens, a real Triton."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clip_files import write_video
from gate import ROOT, Gate, gate_before
from patience import PATIENCE_S
from shared_server import SharedServer

from onestream.serving.proxy.tokens import add_token

pytestmark = [pytest.mark.needs_triton, pytest.mark.needs_nginx, pytest.mark.slow]

PHOTOS = sorted((ROOT / "examples" / "photos").glob("*.jpg"))
COFFEE = ROOT / "examples" / "photos" / "coffee.jpg"
WRONG_TOKENS = {"https": None, "grpcs": "0" * 64}
SCHEMES = pytest.mark.parametrize("scheme", WRONG_TOKENS)
NEEDS_A_TOKEN = "refused (UNAUTHENTICATED): this server needs a token"

# In a process of its own: gRPC reads once whom it trusts.
SCRIPT = """
import asyncio, os, sys
from onestream.client import AsyncClient, Client, OnestreamError

TOKEN = os.environ.get("ONESTREAM_TOKEN")

def at_once(url, *files):
    with Client(url, token=TOKEN, retries=0) as client:
        if files[0].endswith(".mp4"):
            with client.stream(files[0]) as frames:
                return [len(list(frames))]
        found = client.classify_many(files, in_flight=4)
        return [client.server_info().name, *(item.unwrap().top.label for item in found)]

async def asynchronously(url, *files):
    async with AsyncClient(url, token=TOKEN, retries=0) as client:
        if files[0].endswith(".mp4"):
            async with client.stream(files[0]) as frames:
                return [len([frame async for frame in frames])]
        found = client.classify_many(files, in_flight=4)
        return [(await client.server_info()).name, *[item.unwrap().top.label async for item in found]]

for ask in (at_once, lambda *given: asyncio.run(asynchronously(*given))):
    try:
        print(*ask(*sys.argv[1:]))
    except OnestreamError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def gate(server: SharedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with gate_before(server, tmp_path_factory.mktemp("gate")) as opened:
        yield opened


def address(gate: Gate, scheme: str) -> str:
    """Not localhost, which may be two addresses: gRPC tells the failure of one of them only."""
    return f"{scheme}://127.0.0.1:{gate.port}"


def asked(gate: Gate, scheme: str, *files: Path, token: str | None, trusting: bool = True) -> list[str]:
    """What the script prints of the client and of the asynchronous one, a line each."""
    command = [sys.executable, "-c", SCRIPT, address(gate, scheme), *map(str, files)]
    environment = gate.environment(token)
    if not trusting:
        environment = {name: value for name, value in environment.items() if name not in gate.certificates.trusted}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    return lines


def json_rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@SCHEMES
def test_clients_need_a_token_and_a_certificate_that_they_know(gate: Gate, scheme: str) -> None:
    assert asked(gate, scheme, *[COFFEE] * 9, token=gate.token) == ["triton" + " espresso" * 9] * 2
    for said in asked(gate, scheme, COFFEE, token=WRONG_TOKENS[scheme]):
        assert said.startswith("ServerRefused ")
        assert NEEDS_A_TOKEN in said
        assert "expected a token that it knows" in said
    # OpenSSL's and gRPC's own names for the file of trusted authorities.
    variable = {"https": "SSL_CERT_FILE", "grpcs": "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"}[scheme]
    for said in asked(gate, scheme, COFFEE, token=gate.token, trusting=False):
        assert said.startswith(f"CannotConnect cannot reach {address(gate, scheme)}")
        assert "its certificate is not trusted (" in said
        assert f"is trusted where {variable} names the file of its authority" in said


def test_the_streams_of_clients_send_the_token(gate: Gate, tmp_path: Path) -> None:
    """They have a connection of their own."""
    clip = write_video(tmp_path / "clip.mp4", "libx264", count=12, size_hw=(240, 320))
    assert asked(gate, "grpcs", clip, token=gate.token) == ["12"] * 2
    assert all("UNAUTHENTICATED" in said for said in asked(gate, "grpcs", clip, token=None))


@SCHEMES
def test_commands_need_a_token(gate: Gate, scheme: str, tmp_path: Path) -> None:
    """The token is in the environment, or an option."""
    table = tmp_path / "out.jsonl"
    pipeline = {"https": "classify", "grpcs": "classify_fused"}[scheme]
    predict = ("predict", "--json", "--pipeline", pipeline, str(COFFEE))
    bulk = ("bulk", str(COFFEE.parent), "--to", str(table))
    for command in (predict, bulk):
        done = gate.onestream(*command, scheme=scheme, token=WRONG_TOKENS[scheme])
        assert done.returncode == 2
        assert NEEDS_A_TOKEN in done.stderr
        assert "ONESTREAM_TOKEN" in done.stderr
        assert "espresso" not in done.stdout
    assert list(tmp_path.iterdir()) == []
    done = gate.onestream(*predict, scheme=scheme, token=gate.token)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["labels"] == ["espresso"]
    option, token = {"https": ((), gate.token), "grpcs": (("--token", gate.token), None)}[scheme]
    done = gate.onestream(*bulk, *option, scheme=scheme, token=token)
    assert done.returncode == 0, done.stderr
    labels = {Path(row["path"]): row["labels"][0] for row in json_rows(table.read_text())}
    assert list(labels) == PHOTOS
    assert labels[COFFEE] == "espresso"


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
    assert [row["labels"][0] for row in json_rows(table.read_text())] == ["espresso"] * listed.count("\n")
