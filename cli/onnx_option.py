"""The option ``--onnx`` of commands that build: one network, or of a cascade one for each stage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import typer

HELP = "The network, where the pipeline names no built-in one; of a cascade STAGE=FILE, for each stage."


def by_stage(options: Sequence[str]) -> tuple[Path | None, dict[str, Path]]:
    """The file that names no stage, and those that do, by their stages. Raises ``typer.BadParameter``."""
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
