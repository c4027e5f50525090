"""``onestream demo page``: starts the page, and a server where it is asked to."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onestream.cli.demo_page.service import address_of, check_host, listen, warn
from onestream.cli.exit_codes import EXIT_CANNOT_START, fail, needs_extras
from onestream.cli.options import HostOption, InsecureBindOption, UrlOption, server_url

if TYPE_CHECKING:
    from onestream.preprocess.training.augmentation import Augmentation

_SHUTDOWN_S = 2.0


def demo_page(
    *,
    url: UrlOption = None,
    serve: Annotated[bool, typer.Option("--serve", help="Start a server for the page, and stop it with it.")] = False,
    repository: Annotated[Path, typer.Option(help="Folder of models, for --serve.")] = Path("model_repository"),
    augmentation: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="How training varies pictures, as YAML (docs/augmentation.md), which the page shows; needs PyTorch.  "
            "\\[default: box and flip]",
        ),
    ] = None,
    host: HostOption = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 takes a free one.")] = 8090,
    insecure_bind: InsecureBindOption = False,
) -> None:
    """Show a page where you drop an image and see what the network saw, its answer, and each step's milliseconds.

    Exits with 0 when it is stopped (Ctrl-C), 2 when it cannot be started.
    """
    if url is not None and serve:
        fail(
            "--url and --serve exclude each other: the one asks a running server, the other starts one",
            EXIT_CANNOT_START,
        )
    with needs_extras("cpu", "demo"):
        from aiohttp import web

        from onestream.cli.demo_page.app import Page
        from onestream.cli.demo_page.served import Served
        from onestream.measure.parity.heatmap import check_installed
        from onestream.serving.server.errors import ServerError
        from onestream.serving.server.server import Server

        check_installed()
    chain = _chain(augmentation)
    loopback = check_host("page", host, insecure_bind=insecure_bind)
    with ExitStack() as stack:
        listening = stack.enter_context(listen(host, port))
        try:
            if serve:
                typer.echo(f"starting Triton with the models of {repository}", err=True)
                server = stack.enter_context(Server(repository, http_port=0, grpc_port=0, metrics_port=0))
                url = server.grpc_address
            served = Served(server_url(url))
        except (ServerError, ValueError) as error:
            fail(f"error: {error}", EXIT_CANNOT_START)
        except KeyboardInterrupt:
            return
        stack.callback(served.close)
        if not loopback:
            warn(f"all who reach {host} can use this page, and browsers give webcams to 127.0.0.1 and https only")
        typer.echo(f"open {address_of(listening, host)} (server: {served.url}); Ctrl-C stops it")
        web.run_app(
            Page(served, chain, loopback=loopback).application(),
            sock=listening,
            print=None,
            access_log=None,
            shutdown_timeout=_SHUTDOWN_S,
        )


def _chain(file: Path | None) -> Augmentation | str:
    """How training varies pictures; a text that says why that cannot be shown, where PyTorch is not installed."""
    from onestream.cli.augment import read_augmentation
    from onestream.preprocess import BackendMissing

    try:
        return read_augmentation(file, [])
    except BackendMissing as error:
        if file is not None:
            fail(str(error), EXIT_CANNOT_START)
        return f"Not shown: {error}"
