"""``onestream proxy`` and ``onestream proxy token``: nginx in front of a server, and who may pass."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from onestream.cli.exit_codes import EXIT_CANNOT_START, EXIT_FAILED, fail
from onestream.cli.options import Family, is_loopback

if TYPE_CHECKING:
    from onestream.serving.proxy.settings import Proxy

_POLL_S = 0.1
_ADDRESS = "HOST:PORT"
_ASKED_S = 2.0

proxy = typer.Typer(cls=Family)


@proxy.callback(invoke_without_command=True)
def _proxy(
    context: typer.Context,
    repository: Annotated[Path, typer.Option(help="The served folder of models, for names and limits.")] = Path(
        "model_repository"
    ),
    model: Annotated[
        list[str] | None, typer.Option(help="Let others call this model; may be repeated.  \\[default: all pipelines]")
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar=_ADDRESS, help="With TLS for HTTP and gRPC, without for HTTP.")
    ] = "127.0.0.1:8443",
    grpc_listen: Annotated[str, typer.Option(metavar=_ADDRESS, help="For gRPC; only without TLS.")] = "",
    listen_file: Annotated[
        str, typer.Option(help="With --write: file for nginx with its `listen` and certificate, instead of options.")
    ] = "",
    tls_cert: Annotated[
        str, typer.Option(metavar="FILE", help="PEM: this server's certificate, then its authority's.")
    ] = "",
    tls_key: Annotated[str, typer.Option(metavar="FILE", help="PEM: the certificate's private key.")] = "",
    token_file: Annotated[str, typer.Option(help="File of tokens, as `onestream proxy token` makes it.")] = "",
    no_tls: Annotated[bool, typer.Option("--no-tls", help="Do not encrypt.")] = False,
    no_tokens: Annotated[bool, typer.Option("--no-tokens", help="Let everyone in.")] = False,
    insecure_bind: Annotated[
        bool, typer.Option("--insecure-bind", help="Allow --no-tls and --no-tokens beyond this machine.")
    ] = False,
    http: Annotated[str, typer.Option(metavar=_ADDRESS, help="The server's HTTP service.")] = "127.0.0.1:8000",
    grpc: Annotated[str, typer.Option(metavar=_ADDRESS, help="Its gRPC service.")] = "127.0.0.1:8001",
    metrics: Annotated[str, typer.Option(metavar=_ADDRESS, help="Its metrics.")] = "127.0.0.1:8002",
    metrics_listen: Annotated[
        str,
        typer.Option(metavar=_ADDRESS, help="For the metrics, plain: only for a private network.  \\[default: closed]"),
    ] = "",
    statistics: Annotated[bool, typer.Option("--statistics", help="Let callers read the models' statistics.")] = False,
    health_needs_token: Annotated[
        bool, typer.Option("--health-needs-token", help="Ask for a token for liveness and readiness too.")
    ] = False,
    timeout_s: Annotated[int, typer.Option(min=1, help="Seconds that the server may take for an answer.")] = 60,
    slow_client_s: Annotated[int, typer.Option(min=1, help="Seconds that a client may pause in a request.")] = 10,
    requests_per_caller: Annotated[
        int, typer.Option(min=1, help="Requests and streams that one token may have at once from one address.")
    ] = 64,
    access_log: Annotated[str, typer.Option(metavar="FILE", help="A line per request, or off.")] = "/dev/stdout",
    write: Annotated[
        Path | None, typer.Option(help="Write nginx's configuration to this file and run nothing; - is stdout.")
    ] = None,
) -> None:
    """Run nginx in front of a running server until Ctrl-C or SIGTERM; SIGHUP reads tokens and certificates anew.

    Only inference, metadata and readiness of the pipelines pass. Exits with 0 when told to stop, 1 when nginx ends by
    itself, 2 when it cannot be started.
    """
    if context.invoked_subcommand is not None:
        return
    from onestream.serving.errors import BadProxy, ProxyDied
    from onestream.serving.proxy.nginx import RunningProxy
    from onestream.serving.proxy.nginx_config import nginx_config
    from onestream.serving.proxy.settings import Proxy, public_models
    from onestream.serving.proxy.tokens import check_private, check_tokens

    try:
        if listen_file and write is None:
            raise BadProxy("--listen-file is for the nginx that reads what --write writes")
        if not listen_file and bool(tls_cert or tls_key) == no_tls:
            raise BadProxy("give --tls-cert and --tls-key, or --no-tls")
        if bool(token_file) == no_tokens:
            raise BadProxy("give --token-file (`onestream proxy token NAME --file FILE` makes one), or --no-tokens")
        wanted = Proxy(
            models=public_models(repository, model or None),
            listen=listen,
            grpc_listen=grpc_listen,
            listen_file=listen_file,
            certificate=_path(tls_cert, write),
            key=_path(tls_key, write),
            tokens=_path(token_file, write),
            metrics_listen=metrics_listen,
            http=http,
            grpc=grpc,
            metrics=metrics,
            statistics=statistics,
            health_needs_token=health_needs_token,
            timeout_s=timeout_s,
            slow_client_s=slow_client_s,
            requests_per_caller=requests_per_caller,
            access_log=access_log,
        )
        if (no_tls or no_tokens) and not insecure_bind:
            _refuse_beyond_loopback(wanted.listens[: 2 if wanted.grpc_listen else 1], no_tls=no_tls)
        if write is not None:
            _write(nginx_config(wanted, folder="/tmp"), write)
            return
        names = check_tokens(Path(wanted.tokens)) if wanted.tokens else []
        if wanted.key:
            check_private(Path(wanted.key), holds="the key of TLS")
        signals = _Signals()
        running = RunningProxy(wanted)
        running.start()
    except (BadProxy, ProxyDied) as error:
        fail(f"error: {error}", EXIT_CANNOT_START)
    scheme = "s" if wanted.has_tls else ""
    who = f"tokens of {', '.join(dict.fromkeys(names))}" if names else "no tokens"
    print(
        f"ready: http{scheme}://{listen} grpc{scheme}://{grpc_listen or listen} "
        f"models: {', '.join(model.name for model in wanted.models)} ({who})",
        flush=True,
    )
    _tell_unserved(wanted)
    try:
        while not signals.stop:
            running.check_running()
            if signals.reload:
                signals.reload = False
                running.reload()
            time.sleep(_POLL_S)
    except ProxyDied as error:
        fail(f"error: {error}", EXIT_FAILED)
    finally:
        running.stop()
    typer.echo("stopped", err=True)


@proxy.command()
def token(
    name: Annotated[str, typer.Argument(help="Who gets it; the proxy's log shows this name.")],
    file: Annotated[Path, typer.Option(help="File of tokens.")] = Path("tokens.conf"),
) -> None:
    """Make a token, add it to the file, and print it. To revoke a token, remove its line."""
    from onestream.serving.errors import BadProxy
    from onestream.serving.proxy.tokens import add_token

    try:
        print(add_token(file, name))
    except BadProxy as error:
        fail(f"error: {error}", EXIT_CANNOT_START)


def _tell_unserved(proxy: Proxy) -> None:
    """Say which of the models that pass the server does not serve now; it may load them later."""
    from onestream.client import Client, OnestreamError

    try:
        with Client(f"http://{proxy.http}", connect_timeout_s=_ASKED_S, timeout_s=_ASKED_S) as client:
            served = client.models()
    except OnestreamError as error:
        typer.echo(f"what the server serves is not known: {error}", err=True)
        return
    names = [model.name for model in proxy.models]
    if missing := [name for name in names if name not in served]:
        now = ", ".join(name for name in names if name in served) or "none"
        typer.echo(f"of these the server serves {now} now; it has not loaded {', '.join(missing)}", err=True)


def _path(path: str, write: Path | None) -> str:
    """An absolute path for nginx that runs here; as given for one that runs elsewhere."""
    return str(Path(path).resolve()) if path and write is None else path


def _refuse_beyond_loopback(listens: tuple[str, ...], *, no_tls: bool) -> None:
    from onestream.serving.errors import BadProxy
    from onestream.serving.proxy.settings import split_address

    for address in listens:
        if not is_loopback(split_address(address)[0]):
            what = "--no-tls: tokens and images could be read on the way" if no_tls else "--no-tokens: anyone may pass"
            raise BadProxy(
                f"{address} is reachable from other machines, with {what}; listen on 127.0.0.1, or say "
                "--insecure-bind where the network itself is private"
            )


def _write(text: str, target: Path) -> None:
    from onestream.serving.errors import BadProxy

    if str(target) == "-":
        sys.stdout.write(text)
        return
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadProxy(f"cannot write {target}: {error.strerror}") from None


class _Signals:
    """The signals that this process got since it began: to stop, or to reload. Handlers only take note."""

    def __init__(self) -> None:
        self.stop = False
        self.reload = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self.reload = True
        else:
            self.stop = True
