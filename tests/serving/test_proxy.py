"""What a proxy is made of: tokens, public models, refusals of the commands, and nginx without a server behind it."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from proxies import ROOT, make_certificates, proxy_command
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from typer.testing import CliRunner

from client import Client
from onestream.cli import app
from serving import nginx
from serving.errors import BadProxy
from serving.ports import free_port, is_loopback
from serving.proxy import Proxy, PublicModel, public_models, split_address
from serving.proxy_nginx import nginx_config
from serving.proxy_tokens import add_token, check_tokens

REPOSITORY = ROOT / "model_repository"
PLAIN = ("--no-tls", "--no-tokens")


def refused(*arguments: str) -> str:
    """What a command says that cannot start."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "400"})
    assert result.exit_code == 2, result.output
    return result.output


# ---------------------------------------------------------------- tokens


def test_tokens_are_random_named_and_for_their_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "tokens.conf"
    tokens = [add_token(file, name) for name in ("alice", "alice", "nightly-jobs")]
    assert len(set(tokens)) == 3
    assert all(re.fullmatch(r"[0-9a-f]{64}", token) for token in tokens)
    assert check_tokens(file) == ["alice", "alice", "nightly-jobs"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "holds no token"),
        ("# nobody\n\n", "holds no token"),
        ('"Bearer short" alice;', "line 1: expected"),
        ('# x\n"Bearer {0}" alice', "line 2: expected"),
        ('"Bearer {0}" alice; default root;', "line 1: expected"),
        ('"~Bearer {0}" alice;', "line 1: expected"),
        ("default alice;", "line 1: expected"),
        ("include /etc/passwd;", "line 1: expected"),
        ('"Bearer {0}" a;\n"Bearer {1}" b;', "line 2: the token of line 1 again"),
        ('"Bearer {0}é" alice;', "not plain ASCII"),
    ],
)
def test_a_malformed_token_file_is_refused_without_saying_what_it_holds(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "tokens.conf"
    token = "ab12" * 10
    file.write_text(text.format(token, token.upper()), encoding="utf-8")
    with pytest.raises(BadProxy, match=reason) as failure:
        check_tokens(file)
    assert token not in str(failure.value).lower()


@given(st.text(max_size=80))
def test_any_name_makes_a_file_that_is_read_again_or_is_refused(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tokens.conf"
        try:
            add_token(file, name)
        except BadProxy:
            assert not file.exists()
        else:
            assert check_tokens(file) == [name]


def test_the_token_command_prints_what_it_wrote(tmp_path: Path) -> None:
    file = tmp_path / "tokens.conf"
    result = CliRunner().invoke(app, ["token", "alice", "--file", str(file)])
    assert result.exit_code == 0
    assert file.read_text() == f'"Bearer {result.stdout.strip()}" alice;\n'
    assert "is no name for a token" in refused("token", "two words", "--file", str(file))
    assert "No such file or directory" in refused("token", "bob", "--file", str(tmp_path / "no" / "file"))


# ---------------------------------------------------------------- models and addresses


def test_pipelines_are_public_and_their_steps_are_not() -> None:
    found = {model.name: model for model in public_models(REPOSITORY)}
    assert set(found) == {"classify", "classify_fused", "classify_video"}
    assert found["classify_fused"].max_body_bytes == 32 * 1024 * 1024
    assert [model.name for model in found.values() if model.streams] == ["classify_video"]


def test_models_can_be_chosen_and_must_exist(tmp_path: Path) -> None:
    assert [model.name for model in public_models(REPOSITORY, ["classify_model"])] == ["classify_model"]
    with pytest.raises(BadProxy, match="no model 'clasify' in"):
        public_models(REPOSITORY, ["classify", "clasify"])
    with pytest.raises(BadProxy, match="no pipeline in"):
        public_models(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.pbtxt").write_text("name: {")
    with pytest.raises(BadProxy, match=r"broken/config.pbtxt is no model configuration"):
        public_models(tmp_path)


def test_a_model_s_own_limit_is_written() -> None:
    small = (PublicModel(name="small", max_body_bytes=1000), PublicModel(name="large", max_body_bytes=5000))
    text = nginx_config(Proxy(models=small, listen="127.0.0.1:1", grpc_listen="127.0.0.1:2"), folder="/tmp")
    http_limit = re.search(r"= /v2/models/small/infer \{.*?client_max_body_size (\d+)", text, re.DOTALL)
    grpc_limit = re.search(r"/ModelInfer \{.*?client_max_body_size (\d+)", text, re.DOTALL)
    assert http_limit is not None
    assert grpc_limit is not None
    assert int(http_limit[1]) == 1000 + 65536
    assert int(grpc_limit[1]) == 5000 + 65536, "gRPC does not show the model to nginx"
    assert "ModelStreamInfer" not in text, "none of them takes streams"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"models": ()}, "names? at least one"),
        ({"models": (PublicModel(name="a/../b"),)}, "letters, digits"),
        ({"listen": "8443"}, "is no address"),
        ({"listen": "127.0.0.1:70000"}, "is no address"),
        ({"http": "127.0.0.1:8000; evil on"}, "is no address"),
        ({"tokens": "/etc/x; return 200"}, "a path may not hold"),
        ({"certificate": "/a"}, "one of them is missing"),
        ({"grpc_listen": ""}, "an address of its own"),
        ({"certificate": "/a", "key": "/b"}, "one too many"),
        ({"timeout_s": 0}, "expected 1 or more"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, object], reason: str) -> None:
    given_fields = {"models": (PublicModel(name="a"),), "listen": "127.0.0.1:1", "grpc_listen": "127.0.0.1:2"}
    with pytest.raises(BadProxy, match=reason):
        Proxy(**{**given_fields, **fields})  # type: ignore[arg-type]


@given(st.ip_addresses(), st.integers(1, 65535))
def test_every_address_is_split(address: object, port: int) -> None:
    text = f"[{address}]:{port}" if ":" in str(address) else f"{address}:{port}"
    assert split_address(text) == (str(address), port)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.0.2.1", False),
        ("no-such-host.invalid", False),
    ],
)
def test_only_loopback_counts_as_this_machine(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


# ---------------------------------------------------------------- the commands refuse


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_serve_does_not_bind_beyond_this_machine(host: str, tmp_path: Path) -> None:
    message = refused("serve", "--host", host)
    assert f"--host {host} lets other machines reach Triton itself" in message
    assert "`onestream proxy`" in message
    assert "--insecure-bind" in message
    allowed = refused("serve", "--host", host, "--insecure-bind", "--repository", str(tmp_path / "none"))
    assert "does not exist" in allowed, "it went on to look for models"


def test_the_proxy_asks_for_tls_and_tokens_or_to_be_told() -> None:
    assert "--tls-cert and --tls-key, or --no-tls" in refused("proxy")
    assert "--token-file" in refused("proxy", "--tls-cert", "a", "--tls-key", "b")
    assert "--no-tokens" in refused("proxy", "--no-tls", "--grpc-listen", "127.0.0.1:1")


@pytest.mark.parametrize("given_options", [PLAIN, ("--no-tls", "--token-file", "x")])
def test_the_proxy_is_not_plain_beyond_this_machine(given_options: tuple[str, ...]) -> None:
    for listens in (("0.0.0.0:1", "127.0.0.1:2"), ("127.0.0.1:1", "[::]:2")):
        message = refused("proxy", *given_options, "--listen", listens[0], "--grpc-listen", listens[1])
        assert "is reachable from other machines" in message
    tls_without_tokens = ("--tls-cert", "a", "--tls-key", "b", "--no-tokens", "--listen", "0.0.0.0:1")
    assert "anyone may pass" in refused("proxy", *tls_without_tokens)


def test_without_nginx_the_proxy_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nginx.shutil, "which", lambda *_, **__: None)
    message = refused("proxy", *PLAIN, "--listen", "127.0.0.1:1", "--grpc-listen", "127.0.0.1:2")
    assert "apt-get install nginx-light" in message


def test_a_token_goes_over_tls_only() -> None:
    for url in ("127.0.0.1:8001", "http://127.0.0.1:8000"):
        with pytest.raises(ValueError, match=r"would send the token unencrypted; expected grpcs:// or https://"):
            Client(url, token="secret")
    for token in ("", "two words", "line\nend"):
        with pytest.raises(ValueError, match="no header may have"):
            Client("https://localhost", token=token)
    Client("grpcs://localhost:1", token="secret").close()


# ---------------------------------------------------------------- nginx


def free_ports() -> tuple[int, int]:
    first = free_port("127.0.0.1")
    return first, next(port for port in iter(lambda: free_port("127.0.0.1"), 0) if port != first)


@pytest.mark.needs_nginx
def test_a_server_that_is_not_there_is_unavailable_and_the_proxy_stops_clean(tmp_path: Path) -> None:
    http_port, grpc_port = free_ports()
    with proxy_command(
        tmp_path / "output",
        *PLAIN,
        *("--listen", f"127.0.0.1:{http_port}", "--grpc-listen", f"127.0.0.1:{grpc_port}"),
        *("--http", "127.0.0.1:1", "--grpc", "127.0.0.1:1"),
    ) as running:
        assert "models: classify, classify_fused, classify_video (no tokens)" in running.text
        connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=10)
        connection.request("GET", "/v2/models/classify")
        answer = connection.getresponse()
        assert answer.status == 502
        assert "does not answer" in json.loads(answer.read())["error"]
        connection.close()
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel, pytest.raises(grpc.RpcError) as failure:
            GRPCInferenceServiceStub(channel).ModelInfer(messages.ModelInferRequest(), timeout=10)
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
        (master,) = psutil.Process(running.process.pid).children()
        (folder,) = re.findall(r"-c (\S+)/nginx\.conf", " ".join(master.cmdline()))
    assert running.process.returncode == 0
    assert running.text.endswith("stopped\n")
    assert not Path(folder).exists()


def wait_until_closed(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return
        assert time.monotonic() < deadline, "nginx still listens"
        time.sleep(0.1)


@pytest.mark.needs_nginx
@pytest.mark.parametrize("killed", ["the command", "nginx"])
def test_neither_outlives_the_other(tmp_path: Path, killed: str) -> None:
    http_port, grpc_port = free_ports()
    listens = ("--listen", f"127.0.0.1:{http_port}", "--grpc-listen", f"127.0.0.1:{grpc_port}")
    with proxy_command(tmp_path / "output", *PLAIN, *listens) as running:
        (master,) = psutil.Process(running.process.pid).children()
        if killed == "nginx":
            master.kill()
            assert running.process.wait(15) == 1
            running.wait_for("error: nginx ended with status -9")
        else:
            running.process.kill()
            running.process.wait(15)
        wait_until_closed(http_port)


@pytest.mark.needs_nginx
def test_what_nginx_refuses_is_one_line(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    add_token(tmp_path / "tokens.conf", "alice")
    options = ("--token-file", str(tmp_path / "tokens.conf"), "--listen", f"127.0.0.1:{free_port('127.0.0.1')}")
    message = refused("proxy", *options, "--tls-cert", str(tmp_path / "absent.crt"), "--tls-key", str(certificates.key))
    assert message.startswith("error: nginx refuses the configuration: ")
    assert "absent.crt" in message
    (tmp_path / "other").mkdir()
    other = make_certificates(tmp_path / "other")
    message = refused("proxy", *options, "--tls-cert", str(certificates.certificate), "--tls-key", str(other.key))
    assert "key values mismatch" in message


@pytest.mark.needs_nginx
def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "onestream", "proxy", *PLAIN, "--listen", address]
        command += ["--grpc-listen", f"127.0.0.1:{free_port('127.0.0.1')}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, env=os.environ)
    assert done.returncode == 2
    assert f"bind() to {address} failed" in done.stderr
    assert "before it served" in done.stderr


@contextmanager
def plain_proxy(output: Path, *options: str, server: str = "127.0.0.1:1") -> Iterator[tuple[int, int]]:
    """HTTP's and gRPC's port of a proxy without TLS."""
    http_port, grpc_port = free_ports()
    listens = ("--listen", f"127.0.0.1:{http_port}", "--grpc-listen", f"127.0.0.1:{grpc_port}")
    with proxy_command(output, "--no-tls", *listens, "--http", server, "--grpc", server, *options):
        yield http_port, grpc_port


def answers(ports: tuple[int, int], path: str, method: str) -> tuple[int, grpc.StatusCode]:
    """What is answered to a GET over HTTP, and to an empty message over gRPC."""
    connection = http.client.HTTPConnection("127.0.0.1", ports[0], timeout=10)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    request = getattr(messages, f"{method}Request")()
    with grpc.insecure_channel(f"127.0.0.1:{ports[1]}") as channel, pytest.raises(grpc.RpcError) as failure:
        getattr(GRPCInferenceServiceStub(channel), method)(request, timeout=10)
    return status, failure.value.code()  # type: ignore[attr-defined]


@pytest.mark.needs_nginx
def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with plain_proxy(tmp_path / "output", "--no-tokens", "--timeout-s", "1", server=address) as ports:
            expected = (504, grpc.StatusCode.DEADLINE_EXCEEDED)
            assert answers(ports, "/v2/models/classify", "ModelMetadata") == expected


@pytest.mark.needs_nginx
@pytest.mark.parametrize(
    ("options", "health", "statistics"),
    [
        ((), "passed on", "closed"),
        (("--health-needs-token",), "refused", "closed"),
        (("--statistics",), "passed on", "refused"),
    ],
    ids=["by default", "health", "statistics"],
)
def test_health_and_statistics_are_open_as_told(
    tmp_path: Path, options: tuple[str, ...], health: str, statistics: str
) -> None:
    expected = {
        "passed on": (502, grpc.StatusCode.UNAVAILABLE),
        "refused": (401, grpc.StatusCode.UNAUTHENTICATED),
        "closed": (403, grpc.StatusCode.PERMISSION_DENIED),
    }
    add_token(tmp_path / "tokens.conf", "alice")
    with plain_proxy(tmp_path / "output", "--token-file", str(tmp_path / "tokens.conf"), *options) as ports:
        assert answers(ports, "/v2/health/ready", "ServerReady") == expected[health]
        assert answers(ports, "/v2/models/classify/stats", "ModelStatistics") == expected[statistics]


# ---------------------------------------------------------------- what the pages say


@pytest.mark.parametrize("page", ["docs/public.md", "README.md"])
def test_the_documented_start_is_accepted(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line.split("  #")[0] for line in (ROOT / page).read_text(encoding="utf-8").splitlines()]
    token_line, serve_line, proxy_line = (
        next(line for line in lines if line.startswith(f"onestream {command}"))
        for command in ("token alice", "serve --public", "proxy --listen")
    )
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, token_line.split()[1:])
    assert result.exit_code == 0, result.output
    assert "does not exist" in refused(*serve_line.split()[1:]), "it got as far as looking for models"
    options = ("--repository", str(REPOSITORY), "--write", "-")
    result = CliRunner().invoke(app, [*proxy_line.split()[1:], *options])
    assert result.exit_code == 0, result.output
    assert "listen 0.0.0.0:8443 ssl http2;" in result.stdout
    assert "include tokens.conf;" in result.stdout
    assert check_tokens(tmp_path / "tokens.conf") == ["alice"]


# ---------------------------------------------------------------- what the containers mount


def documented() -> list[str]:
    """The lines of docs/public.md that write the containers' configurations."""
    text = (ROOT / "docs" / "public.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("onestream proxy --write ")]
    assert len(lines) == 3
    return lines


@pytest.mark.parametrize("line", documented(), ids=["local", "public", "cluster"])
def test_the_committed_configurations_are_what_the_documented_commands_write(line: str, tmp_path: Path) -> None:
    target = re.search(r"--write (\S+)", line)
    assert target is not None
    arguments = line.replace(target[1], str(tmp_path / "nginx.conf")).split()[1:]
    result = CliRunner().invoke(app, [*arguments, "--repository", str(REPOSITORY)])
    assert result.exit_code == 0, result.output
    committed = (ROOT / target[1]).read_text(encoding="utf-8")
    assert (tmp_path / "nginx.conf").read_text(encoding="utf-8") == committed, f"run: {line}"


@pytest.mark.needs_nginx
@pytest.mark.parametrize("name", ["local", "public", "cluster"])
def test_nginx_accepts_the_committed_configurations(name: str, tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "proxy" / f"{name}.conf").read_text(encoding="utf-8")
    (tmp_path / "tls").mkdir()
    make_certificates(tmp_path / "tls")
    (tmp_path / "tokens").mkdir()
    add_token(tmp_path / "tokens" / "tokens.conf", "alice")
    # The name of compose's network, and the places of containers.
    text = text.replace(" /tmp/", f" {tmp_path}/").replace("/etc/onestream", str(tmp_path))
    text = text.replace("onestream:", "127.0.0.1:").replace("0.0.0.0:", "127.0.0.1:")
    (tmp_path / "nginx.conf").write_text(text, encoding="utf-8")
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program is not None
    command = [program, "-e", "stderr", "-t", "-c", str(tmp_path / "nginx.conf")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "test is successful" in done.stderr
    assert "[warn]" not in done.stderr
