"""The file of a plot, refused before minutes of measuring rather than after them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from onestream.cli.exit_codes import EXIT_CANNOT_START, fail
from onestream.wire.install import install_command

_ENDINGS = (".png", ".svg", ".pdf")


def check_folder(file: Path) -> None:
    """End the program where a file's folder is not there."""
    if not file.parent.is_dir():
        fail(f"{file}: its folder does not exist", EXIT_CANNOT_START)


def check_plot(plot: Path) -> None:
    """End the program where a plot could not be drawn into this file."""
    check_folder(plot)
    if plot.suffix.lower() not in _ENDINGS:
        fail(f"--plot {plot}: allowed are names that end in {', '.join(_ENDINGS)}", EXIT_CANNOT_START)
    if importlib.util.find_spec("matplotlib") is None:
        fail(f"--plot: matplotlib is not installed. Run: {install_command('tune')}", EXIT_CANNOT_START)
