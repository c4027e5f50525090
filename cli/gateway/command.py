"""``onestream gateway``: plain HTTP and JSON in front of a running server."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Annotated

import typer

from onestream.cli.demo_page.service import ANY_ORIGIN, address_of, check_host, listen, warn
from onestream.cli.exit_codes import EXIT_CANNOT_START, fail, needs_extras
from onestream.cli.options import HostOption, InsecureBindOption, TimeoutOption, UrlOption, server_url

_SHUTDOWN_S = 10.0
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")


def gateway(
    *,
    url: UrlOption = None,
    host: HostOption = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8080,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Allow web pages of this origin (CORS), such as https://app.example.com, or * for all; may be "
            "repeated.  \\[default: none]",
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Maximum number of images at the server at once.")] = 16,
    timeout_s: TimeoutOption = None,
    insecure_bind: InsecureBindOption = False,
) -> None:
    """Serve pipelines as plain HTTP with JSON: image files, forms or base64 in, results out.

    GET /docs lists the routes. Exits with 0 when it is stopped (Ctrl-C, SIGTERM), 2 when it cannot be started.
    """
    with needs_extras("demo"):
        from aiohttp import web

        from onestream.cli.demo_page.served import Served
        from onestream.cli.gateway.app import Gateway
    for origin in allow_origin or ():
        if origin not in (ANY_ORIGIN, "null") and not _ORIGIN.fullmatch(origin):
            fail(f"--allow-origin {origin}: expected * or SCHEME://HOST[:PORT] without a path", EXIT_CANNOT_START)
    loopback = check_host("gateway", host, insecure_bind=insecure_bind)
    try:
        served = Served(server_url(url))
    except ValueError as error:
        fail(f"error: --url: {error}", EXIT_CANNOT_START)
    with listen(host, port) as listening, closing(served):
        if not loopback:
            warn(f"all who reach {host} can use this gateway")
        typer.echo(f"ready: {address_of(listening, host)}docs (server: {served.url}); Ctrl-C stops it")
        web.run_app(
            Gateway(
                served,
                loopback=loopback,
                origins=frozenset(allow_origin or ()),
                concurrency=concurrency,
                timeout_s=timeout_s,
            ).application(),
            sock=listening,
            print=None,
            access_log=None,
            shutdown_timeout=_SHUTDOWN_S,
            # A caller that is gone no longer occupies the server.
            handler_cancellation=True,
        )
