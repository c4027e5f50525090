"""AsyncClient over TLS, with a proxy before Triton that ends it, as a deployment has one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trustme
from test_tls import PHOTO, ROOT, tls_proxy

from onestream.serving.server.server import Server

pytestmark = pytest.mark.needs_triton

SCRIPT = """
import asyncio, sys
from onestream.client import AsyncClient, CannotConnect

async def main(url, photo):
    async with AsyncClient(url, retries=0) as client:
        try:
            print((await client.classify(photo)).top.label)
        except CannotConnect as error:
            print(error)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(("scheme", "protocol"), [("https", "http/1.1"), ("grpcs", "h2")])
def test_a_known_certificate_is_accepted_and_any_other_refused(
    server: Server, tmp_path: Path, scheme: str, protocol: str
) -> None:
    authority = trustme.CA()
    pem = str(tmp_path / "authority.pem")
    authority.cert_pem.write_to_path(pem)
    target = server.http_address if scheme == "https" else server.grpc_address
    with tls_proxy(target, authority, protocol=protocol) as port:

        def classify(**environment: str) -> str:
            command = [sys.executable, "-c", SCRIPT, f"{scheme}://127.0.0.1:{port}", str(PHOTO)]
            given = {**os.environ, **environment}
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=given)
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert classify(SSL_CERT_FILE=pem, GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=pem) == "espresso\n"
        refused = classify()
        assert f"cannot reach {scheme}://127.0.0.1:{port}" in refused
        assert "CERTIFICATE_VERIFY_FAILED" in refused
