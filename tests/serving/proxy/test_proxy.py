"""What a proxy is made of: tokens, public models, refusals of the commands, and nginx without a server behind it."""

from __future__ import annotations

import re
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proxies import ROOT, refused
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.cli.options import is_loopback
from onestream.client import AsyncClient, Client
from onestream.client._transports.base import Address
from onestream.serving.errors import BadProxy
from onestream.serving.proxy import nginx
from onestream.serving.proxy.nginx_config import nginx_config
from onestream.serving.proxy.settings import Proxy, PublicModel, public_models, split_address
from onestream.serving.proxy.tokens import add_token, check_tokens

REPOSITORY = ROOT / "model_repository"
PLAIN = ("--no-tls", "--no-tokens")
TWO_PORTS = {"listen": "127.0.0.1:1", "grpc_listen": "127.0.0.1:2"}


def printed(*arguments: str) -> str:
    """What a command prints that ends well."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_tokens_are_random_named_and_for_their_owner_and_group_only(tmp_path: Path) -> None:
    file = tmp_path / "tokens.conf"
    tokens = [add_token(file, name) for name in ("alice", "alice", "nightly-jobs")]
    assert len(set(tokens)) == 3
    assert all(re.fullmatch(r"[0-9a-f]{64}", token) for token in tokens)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for mode in (0o600, 0o640, 0o400):
        file.chmod(mode)
        assert check_tokens(file) == ["alice", "alice", "nightly-jobs"]


def test_the_token_command_prints_what_it_wrote(tmp_path: Path) -> None:
    file = tmp_path / "tokens.conf"
    token = printed("proxy", "token", "alice", "--file", str(file)).strip()
    assert file.read_text() == f'"Bearer {token}" alice;\n'
    assert "is no name for a token" in refused("proxy", "token", "two words", "--file", str(file))
    assert "No such file or directory" in refused("proxy", "token", "bob", "--file", str(tmp_path / "no" / "file"))


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
    file.chmod(0o600)
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


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620])
def test_a_file_of_secrets_that_others_reach_is_refused(tmp_path: Path, mode: int) -> None:
    tokens, key = tmp_path / "tokens.conf", tmp_path / "tls.key"
    add_token(tokens, "alice")
    before = tokens.read_text()
    key.write_text("secret")
    for file in (tokens, key):
        file.chmod(mode)
    message = refused("proxy", "token", "bob", "--file", str(tokens))
    assert f"has mode {mode:04o}" in message
    assert f"chmod 600 {tokens}" in message
    assert tokens.read_text() == before, "no token was added"
    served = ("proxy", "--listen", "127.0.0.1:1")
    plain = ("--grpc-listen", "127.0.0.1:2", "--no-tls", "--token-file", str(tokens))
    assert f"{tokens} holds tokens and has mode {mode:04o}" in refused(*served, *plain)
    certified = ("--tls-cert", str(key), "--tls-key", str(key), "--no-tokens")
    assert f"{key} holds the key of TLS and has mode {mode:04o}" in refused(*served, *certified)


def test_pipelines_are_public_and_other_models_can_be_chosen(tmp_path: Path) -> None:
    found = {model.name: model for model in public_models(REPOSITORY)}
    assert set(found) == {"classify", "classify_fused", "classify_video"}
    assert found["classify_fused"].max_body_bytes == 32 * 1024 * 1024
    assert [model.name for model in found.values() if model.streams] == ["classify_video"]
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
    text = nginx_config(Proxy(models=small, **TWO_PORTS), folder="/tmp")
    http_limit = re.search(r"= /v2/models/small/infer \{.*?client_max_body_size (\d+)", text, re.DOTALL)
    grpc_limit = re.search(r"/ModelInfer \{.*?client_max_body_size (\d+)", text, re.DOTALL)
    assert int(http_limit[1]) == 1000 + 65536
    assert int(grpc_limit[1]) == 5000 + 65536, "gRPC does not show the model to nginx"
    assert "ModelStreamInfer" not in text, "none of them takes streams"


@given(
    st.sampled_from(
        [{"certificate": "/tls.crt", "key": "/tls.key"}, {"grpc_listen": "127.0.0.1:2"}, {"listen_file": "/a"}]
    ),
    st.fixed_dictionaries({"statistics": st.booleans(), "health_needs_token": st.booleans()}),
    st.sampled_from(["", "/tokens.conf"]),
    st.sampled_from(["", "127.0.0.1:3"]),
    st.sets(st.sampled_from(["one", "two", "video"]), min_size=1),
)
def test_no_mark_of_the_template_is_left_and_every_block_is_closed(
    listens: dict[str, str], choices: dict[str, bool], tokens: str, metrics_listen: str, names: set[str]
) -> None:
    models = tuple(PublicModel(name=name, streams=name == "video") for name in sorted(names))
    proxy = Proxy(
        models=models, listen="127.0.0.1:1", tokens=tokens, metrics_listen=metrics_listen, **listens, **choices
    )  # type: ignore[arg-type]
    text = nginx_config(proxy, folder="/tmp")
    assert "{{" not in text
    assert text.count("{") == text.count("}")
    assert all(f"/v2/models/{name}/ready" in text for name in names)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"models": ()}, "needs at least one model"),
        ({"models": (PublicModel(name="a/../b"),)}, "letters, digits"),
        ({"listen": "8443"}, "is no address"),
        ({"listen": "127.0.0.1:70000"}, "is no address"),
        ({"http": "127.0.0.1:8000; evil on"}, "is no address"),
        ({"tokens": "/etc/x; return 200"}, "a path may not hold"),
        ({"certificate": "/a"}, "one of them is missing"),
        ({"grpc_listen": ""}, "an address of its own"),
        ({"certificate": "/a", "key": "/b"}, "one too many"),
        ({"listen_file": "/a"}, "/a says where it listens; 127.0.0.1:2 does too"),
        ({"timeout_s": 0}, "expected 1 or more"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(BadProxy, match=reason):
        Proxy(**{"models": (PublicModel(name="a"),), **TWO_PORTS, **fields})  # type: ignore[arg-type]


@given(st.ip_addresses(), st.integers(1, 65535))
def test_every_address_is_split(address: object, port: int) -> None:
    text = f"[{address}]:{port}" if ":" in str(address) else f"{address}:{port}"
    assert split_address(text) == (str(address), port)


def test_only_loopback_counts_as_this_machine() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "", "192.0.2.1", "no-such-host.invalid")))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_serve_does_not_bind_beyond_this_machine(host: str, tmp_path: Path) -> None:
    message = refused("serve", "--host", host)
    assert f"--host {host} lets other machines reach Triton itself" in message
    assert "`onestream proxy`" in message
    assert "--insecure-bind" in message
    allowed = refused("serve", "--host", host, "--insecure-bind", "--repository", str(tmp_path / "none"))
    assert "does not exist" in allowed, "it went on to look for models"


BEYOND = "is reachable from other machines"
CERTIFIED = ("--tls-cert", "a", "--tls-key", "b")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--tls-cert and --tls-key, or --no-tls"),
        (CERTIFIED, "--token-file"),
        (("--no-tls", "--grpc-listen", "127.0.0.1:1"), "--no-tokens"),
        (("--listen-file", "a", "--no-tokens"), "--listen-file is for"),
        (("--listen", "0.0.0.0:1", "--grpc-listen", "127.0.0.1:2", *PLAIN), BEYOND),
        (("--listen", "127.0.0.1:1", "--grpc-listen", "[::]:2", *PLAIN), BEYOND),
        (("--listen", "0.0.0.0:1", "--grpc-listen", "127.0.0.1:2", "--no-tls", "--token-file", "x"), BEYOND),
        (("--listen", "127.0.0.1:1", "--grpc-listen", "[::]:2", "--no-tls", "--token-file", "x"), BEYOND),
        ((*CERTIFIED, "--no-tokens", "--listen", "0.0.0.0:1"), "anyone may pass"),
    ],
)
def test_the_proxy_asks_for_tls_and_tokens_or_to_be_told(options: tuple[str, ...], said: str) -> None:
    assert said in refused("proxy", *options)


def test_without_nginx_the_proxy_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nginx.shutil, "which", lambda *_, **__: None)
    message = refused("proxy", *PLAIN, "--listen", "127.0.0.1:1", "--grpc-listen", "127.0.0.1:2")
    assert "apt-get install nginx-light" in message


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_token_goes_over_tls_only(kind: Callable[..., object]) -> None:
    for url in ("127.0.0.1:8001", "http://127.0.0.1:8000"):
        with pytest.raises(ValueError, match=r"would send the token unencrypted; expected grpcs:// or https://"):
            kind(url, token="secret")
    for token in ("", "two words", "line\nend", "caf\u00e9"):
        with pytest.raises(ValueError, match="no header may have"):
            kind("https://localhost", token=token)
    for url in ("grpcs://localhost:1", "https://localhost:1"):
        assert "secret" not in repr(kind(url, token="secret"))
    assert "secret" not in repr(Address.parse("grpcs://localhost:1", token="secret"))


def test_the_documented_start_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    lines = [line.split("  #")[0] for line in page.splitlines()]
    token_line, serve_line, proxy_line = (
        next(line for line in lines if line.startswith(f"onestream {command}"))
        for command in ("proxy token alice", "serve --public", "proxy --listen")
    )
    monkeypatch.chdir(tmp_path)
    printed(*token_line.split()[1:])
    assert "does not exist" in refused(*serve_line.split()[1:]), "it got as far as looking for models"
    written = printed(*proxy_line.split()[1:], "--repository", str(REPOSITORY), "--write", "-")
    assert "listen 0.0.0.0:8443 ssl http2;" in written
    assert "include tokens.conf;" in written
    assert check_tokens(tmp_path / "tokens.conf") == ["alice"]


def test_the_committed_configuration_is_what_the_documented_command_writes(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith("onestream proxy --write "))
    target = re.search(r"--write (\S+)", line)
    printed(*line.replace(target[1], str(tmp_path / "nginx.conf")).split()[1:], "--repository", str(REPOSITORY))
    committed = (ROOT / target[1]).read_text(encoding="utf-8")
    assert (tmp_path / "nginx.conf").read_text(encoding="utf-8") == committed, f"run: {line}"
