"""What the web services of commands share: where they listen, and whom they refuse."""

from __future__ import annotations

import socket
from collections.abc import Collection
from urllib.parse import urlsplit

import typer

from onestream.cli.exit_codes import EXIT_CANNOT_START, fail
from onestream.cli.options import is_loopback, names_this_machine

ANY_ORIGIN = "*"
HEADERS = {
    # A page loads nothing from elsewhere, and no other page may show it in a frame.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def check_host(what: str, host: str, *, insecure_bind: bool) -> bool:
    """Whether only this machine reaches the host. Ends the program for another one without ``--insecure-bind``."""
    loopback = is_loopback(host)
    if not (loopback or insecure_bind):
        fail(
            f"error: --host {host} lets other machines reach the {what}, which has no tokens and no TLS; leave it on "
            "127.0.0.1, or say --insecure-bind where the network itself is private",
            EXIT_CANNOT_START,
        )
    return loopback


def warn(text: str) -> None:
    """Print a warning on stderr."""
    typer.secho(f"warning: {text}", fg=typer.colors.YELLOW, err=True)


def listen(host: str, port: int) -> socket.socket:
    """A socket of the service's own, so that its port is known and taken before anything is started."""
    try:
        family = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        fail(f"error: cannot listen on {host} port {port}: {error.strerror}; choose another --port", EXIT_CANNOT_START)


def address_of(listening: socket.socket, host: str) -> str:
    """The address of a service in full, such as ``http://127.0.0.1:8090/``."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listening.getsockname()[1]}/"


def refusal(what: str, host: str, origin: str | None, *, loopback: bool, origins: Collection[str] = ()) -> str:
    """Why a request with this Host and Origin is refused, as one that another web site sends through a browser.

    Empty where it is not. ``origins`` may ask, or all where ``ANY_ORIGIN`` is among them.
    """
    if loopback and not _is_local(host):
        return f"this {what} is at a local address, not at {host}"
    if origin is None or origin.partition("://")[2] == host or origin in origins or ANY_ORIGIN in origins:
        return ""
    return f"a page of {origin} may not ask here"


def _is_local(host: str) -> bool:
    """Whether a Host header, perhaps with a port, names this machine itself; what DNS says may be an attacker's."""
    try:
        return names_this_machine(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False
