"""Options that several commands have, and how their values are read."""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from onestream.cli.exit_codes import EXIT_CANNOT_START, fail
from onestream.wire.install import install_command
from onestream.wire.limits import DEFAULT_URL

_UNITS = {"s": "SECONDS", "seconds": "SECONDS", "ms": "MILLISECONDS", "minutes": "MINUTES", "hours": "HOURS"}


class _Described:
    """A command whose help names values by nouns, such as N, SECONDS and PATH, and flags alone."""

    callback: Any

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, each with a ``metavar``; that of ``typer.Option`` wins."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        hints = get_type_hints(self.callback) if self.callback else {}
        for one in parameters:
            if one.metavar is None:
                # --help is in no signature.
                one.metavar = _noun(max(one.opts, key=len), _types(hints.get(one.name, bool)))
            if one.param_type_name == "argument":
                # Typer shows it beside the metavar.
                one.display_type_rich = lambda **_: None
        return parameters

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What the line of the usage shows after the name, with the options that must be given."""
        options, *arguments = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        needed = [one for one in self.get_params(ctx) if one.required and one.param_type_name == "option"]
        return [*(f"{max(one.opts, key=len)} {one.metavar}" for one in needed), options, *arguments]


class Command(_Described, TyperCommand):
    """A command."""


class Family(_Described, TyperGroup):
    """A command with commands below it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.invoke_without_command:
            self.subcommand_metavar = "[COMMAND] [ARGS]..."


def _types(hint: Any) -> list[Any]:
    """The types, and values of a ``Literal``, of which a hint consists."""
    return [hint, *(one for argument in get_args(hint) for one in _types(argument))]


def _noun(option: str, types: Sequence[Any]) -> str:
    """What stands for the value of an option of these types: the last word of its name, if they say no more."""
    choices = [one for one in types if isinstance(one, str)]
    if choices or bool in types:
        return "|".join(choices)
    *_, before, word = re.split("[-_]", f"-{option}")
    if int in types or float in types:
        return "N" if before == "per" else _UNITS.get(word, "N")
    return "PATH" if Path in types and option.startswith("-") else word.upper()


# From the environment, so that it stands in no list of processes and no shell history.
TokenOption = Annotated[
    str | None,
    typer.Option(envvar="ONESTREAM_TOKEN", help="What a proxy asks for; better set it in the environment."),
]

UrlOption = Annotated[
    str | None,
    typer.Option(
        help="The server: host:port or grpc://… for gRPC, http://… for HTTP.  \\[env var: ONESTREAM_URL; default: "
        f"{DEFAULT_URL}]"
    ),
]


def server_url(given: str | None) -> str:
    """The address of the server: that of ``--url``, else of the environment, else the default."""
    return given or os.environ.get("ONESTREAM_URL") or DEFAULT_URL


HostOption = Annotated[str, typer.Option(help="Address to bind; the default is reachable from this machine only.")]
InsecureBindOption = Annotated[
    bool, typer.Option("--insecure-bind", help="Allow a --host beyond this machine, without TLS and tokens.")
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(min=0.001, help="Seconds that one image may take.  \\[default: what the pipeline states]"),
]
SharedMemoryOption = Annotated[
    bool, typer.Option("--shared-memory", help="Hand images over in shared memory (server on this machine).")
]
DeviceChoice = Literal["auto", "cpu", "gpu"]

AllOption = Annotated[
    bool, typer.Option("--all", help="Try every file of folders and tar files, not only those named like images.")
]
TRIES_ALL = "--all tries every file"
"""What a command that takes ``--all`` says of the files that it passed over."""


Pages = Literal["first", "all"]
PagesOption = Annotated[
    Pages, typer.Option(help="Of TIFF files of several pages: the first, or all, each as an image of its own.")
]

ParameterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--parameter",
        metavar="NAME=VALUE",
        help="A number in the place of an option of the pipeline, such as score_threshold=0.4; may be repeated.",
    ),
]


InputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=VALUE",
        help="What the network takes beside each image: numbers in JSON, such as points=[[320, 200]], a .npy file, or "
        "the file of another image; may be repeated.",
    ),
]


def read_inputs(given: Sequence[str] | None) -> dict[str, Any]:
    """The values of NAME=VALUE by their names: lists, numbers or arrays without a batch dimension, and paths of images.

    Raises ValueError for what is neither JSON nor a file, or is given twice.
    """
    import numpy as np

    found: dict[str, Any] = {}
    for one in given or ():
        name, _, text = one.partition("=")
        try:
            if not text.endswith(".npy"):
                # Unlike Path.is_file it takes a text that is longer than any name.
                value = Path(text) if os.path.isfile(text) else json.loads(text)
            elif not isinstance(value := np.load(text, allow_pickle=False), np.ndarray):
                raise ValueError("an archive of arrays")
        except (OSError, ValueError, EOFError, RecursionError, MemoryError) as error:
            reason = getattr(error, "strerror", None) or "expected NAME=NUMBERS in JSON, NAME=FILE.npy or NAME=PHOTO"
            raise ValueError(f"--input {one:.80}: {reason}") from None
        if name in found:
            raise ValueError(f"--input {name:.80} is given twice")
        found[name] = value
    return found


def read_parameters(given: Sequence[str] | None, *, option: str = "--parameter ") -> dict[str, float]:
    """The numbers of NAME=VALUE by their names. Raises ValueError for what cannot be sent, or is given twice.

    ``option`` stands before them where they were given.
    """
    found: dict[str, float] = {}
    for one in given or ():
        name, _, text = one.partition("=")
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{option}{one:.80}: expected NAME=NUMBER, such as top_k=1") from None
        if name in found:
            raise ValueError(f"{option}{name:.80} is given twice")
        found[name] = int(value) if value.is_integer() else value
    from onestream.client.calls import checked_parameters

    return checked_parameters(found)


ONNX_HELP = (
    "The network, where the pipeline names no built-in one; of a cascade STAGE=FILE, for each stage.  "
    "\\[default: that of the last build]"
)


def onnx_by_stage(options: Sequence[str]) -> tuple[Path | None, dict[str, Path]]:
    """The file of ``--onnx`` that names no stage, and those that do, by their stages. Raises ``typer.BadParameter``."""
    found: dict[str, Path] = {}
    for option in options:
        stage, equals, file = option.partition("=")
        # A path may hold =, too.
        is_named = bool(equals) and re.fullmatch(r"\w+", stage) is not None and not Path(option).exists()
        name, path = (stage, file) if is_named else ("", option)
        if name in found:
            raise typer.BadParameter(f"--onnx {option}: a second network{' of stage ' + name if name else ''}")
        found[name] = Path(path)
    return found.pop("", None), found


_PLOTS = (".png", ".svg", ".pdf")


def check_folder(file: Path) -> None:
    """End the program where a file's folder is not there."""
    if not file.parent.is_dir():
        fail(f"{file}: its folder does not exist", EXIT_CANNOT_START)


def check_plot(plot: Path) -> None:
    """End the program where ``--plot`` could not be drawn, before minutes of measuring rather than after them."""
    check_folder(plot)
    if plot.suffix.lower() not in _PLOTS:
        fail(f"--plot {plot}: allowed are names that end in {', '.join(_PLOTS)}", EXIT_CANNOT_START)
    if importlib.util.find_spec("matplotlib") is None:
        fail(f"--plot: matplotlib is not installed. Run: {install_command('demo')}", EXIT_CANNOT_START)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what binds to ``host``, a name or an address; empty means every address."""
    if not host:
        return False
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)


def names_this_machine(host: str) -> bool:
    """Whether a host is *localhost* or a loopback address as written; DNS is not asked."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
