"""Both clients over TLS, with a proxy before Triton that ends it, as a deployment has one."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest
import trustme
from shared_server import SharedServer

ROOT = Path(__file__).parents[2]
PHOTO = ROOT / "examples" / "photos" / "coffee.jpg"

pytestmark = pytest.mark.needs_triton


@contextmanager
def tls_proxy(target: str, authority: trustme.CA, *, protocol: str) -> Iterator[int]:
    """A port that decrypts and passes everything on to ``target``; ``protocol`` is what it agrees to speak (ALPN)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    context.set_alpn_protocols([protocol])
    host, _, port = target.rpartition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    raw, _ = listener.accept()
                    threading.Thread(target=serve, args=(raw,), daemon=True).start()

        def serve(raw: socket.socket) -> None:
            with closing(raw), suppress(OSError), ExitStack() as stack:
                outside = stack.enter_context(context.wrap_socket(raw, server_side=True))
                inside = stack.enter_context(socket.create_connection((host, int(port))))
                # One thread may read a TLS socket while another writes to it.
                back = threading.Thread(target=copy, args=(inside, outside), daemon=True)
                back.start()
                copy(outside, inside)
                back.join(5)

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.close()


def copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


SCRIPT = """
import asyncio, sys
from onestream.client import AsyncClient, CannotConnect, Client

async def asynchronously(url, photo):
    async with AsyncClient(url, retries=0) as client:
        return await client.classify(photo)

def at_once(url, photo):
    with Client(url, retries=0) as client:
        return client.classify(photo)

*urls, photo = sys.argv[1:]
for url in urls:
    for ask in (at_once, lambda *given: asyncio.run(asynchronously(*given))):
        try:
            print(ask(url, photo).top.label)
        except CannotConnect as error:
            print(error)
"""
VARIABLES = {"https": "SSL_CERT_FILE", "grpcs": "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"}
"""OpenSSL's and gRPC's own names for the file of trusted authorities; gRPC reads it once in a process."""


def test_a_known_certificate_is_accepted_and_any_other_refused(server: SharedServer, tmp_path: Path) -> None:
    """By the client and the asynchronous one, over both protocols."""
    authority = trustme.CA()
    pem = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(pem))
    with (
        tls_proxy(server.http_address, authority, protocol="http/1.1") as http_port,
        tls_proxy(server.grpc_address, authority, protocol="h2") as grpc_port,
    ):
        # Not localhost, which may be two addresses: gRPC tells the failure of one of them only.
        urls = {"https": f"https://127.0.0.1:{http_port}", "grpcs": f"grpcs://127.0.0.1:{grpc_port}"}

        def classify(trusted: dict[str, str]) -> list[str]:
            command = [sys.executable, "-c", SCRIPT, *urls.values(), str(PHOTO)]
            given = {**os.environ, **trusted}
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=given)
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines()

        assert classify({name: str(pem) for name in VARIABLES.values()}) == ["espresso"] * 4
        refused = classify({})
        assert len(refused) == 4
        for said, scheme in zip(refused, ("https", "https", "grpcs", "grpcs"), strict=True):
            assert f"cannot reach {urls[scheme]}" in said
            assert "CERTIFICATE_VERIFY_FAILED" in said
            assert f"is trusted where {VARIABLES[scheme]} names the authority's file" in said
