"""A real `onestream proxy` on free ports, for the tests of several folders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme
from patience import PATIENCE_S, wait_until
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.serving.server.triton.ports import free_port

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Certificates:
    """PEM files of one authority and of ``localhost``, certified by it."""

    authority: Path
    certificate: Path
    key: Path

    @property
    def trusted(self) -> dict[str, str]:
        """The environment in which clients trust the authority: OpenSSL's and gRPC's own names for its file."""
        return {"SSL_CERT_FILE": str(self.authority), "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(self.authority)}


def make_certificates(folder: Path) -> Certificates:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    made = Certificates(folder / "authority.pem", folder / "tls.crt", folder / "tls.key")
    authority.cert_pem.write_to_path(str(made.authority))
    issued.private_key_pem.write_to_path(str(made.key))
    made.key.chmod(0o600)
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(str(made.certificate), append=number > 0)
    return made


@dataclass(frozen=True)
class RunningCommand:
    """`onestream proxy`: its process and the file with everything that it and nginx print."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def text(self) -> str:
        return self.output.read_text(encoding="utf-8")

    def wait_for(self, text: str, *, times: int = 1, timeout_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while self.text.count(text) < times:
            assert time.monotonic() < deadline, f"{text!r} was not printed:\n{self.text}"
            time.sleep(0.05)


@contextmanager
def proxy_command(output: Path, *arguments: str) -> Iterator[RunningCommand]:
    """`onestream proxy` with these arguments, ready."""
    command = [sys.executable, "-m", "onestream", "proxy", *arguments]
    # For appending, since nginx opens /dev/stdout anew and would write over what is there.
    with output.open("ab") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
    running = RunningCommand(process, output)
    try:
        wait_until(lambda: "ready: " in running.text or process.poll() is not None)
        assert process.poll() is None, running.text
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


@contextmanager
def plain_proxy(output: Path, *options: str, http: str, grpc: str) -> Iterator[tuple[str, str]]:
    """`onestream proxy` without TLS and tokens before these addresses of a server: its own for HTTP and gRPC."""
    listens = [f"127.0.0.1:{free_port('127.0.0.1')}" for _ in range(2)]
    with proxy_command(
        output,
        *("--no-tls", "--no-tokens", "--listen", listens[0], "--grpc-listen", listens[1]),
        *("--http", http, "--grpc", grpc, *options),
    ):
        yield listens[0], listens[1]


def refused(*arguments: str) -> str:
    """What a command says that cannot start."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "400"})
    assert result.exit_code == 2, result.output
    return result.output
