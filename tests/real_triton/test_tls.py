"""The client over TLS, with a proxy before Triton that ends it, as a deployment has one."""

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

from onestream.serving.server.server import Server

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


@pytest.mark.parametrize(("scheme", "protocol"), [("https", "http/1.1"), ("grpcs", "h2")])
def test_a_known_certificate_is_accepted_and_any_other_refused(
    server: Server, tmp_path: Path, scheme: str, protocol: str
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    target = server.http_address if scheme == "https" else server.grpc_address
    with tls_proxy(target, authority, protocol=protocol) as port:

        def classify(**environment: str) -> subprocess.CompletedProcess[str]:
            # Not localhost, which may be two addresses: gRPC tells the failure of one of them only.
            url = f"{scheme}://127.0.0.1:{port}"
            command = [sys.executable, "-m", "onestream", "predict", "--json", "--url", url, str(PHOTO)]
            given = {**os.environ, **environment}
            return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=given)

        # OpenSSL's and gRPC's own names for the file of trusted authorities.
        pem = str(tmp_path / "authority.pem")
        known = classify(SSL_CERT_FILE=pem, GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=pem)
        assert known.returncode == 0, known.stderr
        assert '"labels": ["espresso"]' in known.stdout
        unknown = classify()
        assert unknown.returncode != 0
        assert "espresso" not in unknown.stdout
        assert f"cannot reach {scheme}://127.0.0.1:{port}" in unknown.stderr
        assert "CERTIFICATE_VERIFY_FAILED" in unknown.stderr
        variable = "SSL_CERT_FILE" if scheme == "https" else "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
        assert f"is trusted where {variable} names the authority's file" in unknown.stderr
        assert "Traceback" not in unknown.stderr
