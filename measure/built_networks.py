"""Networks that were built before, for a repository that is built for a measurement."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from onestream.serving.built.certificate import FILE_NAME
from onestream.serving.engine.network_files import BUILT_FROM_FILE

_KINDS = ("*/*.onnx", f"**/{FILE_NAME}", f"*/*{BUILT_FROM_FILE}")


def take_over(name: str, built: Path, repository: Path) -> None:
    """Link the networks of a pipeline or a cascade, and copy what is known of them, from one repository to another.

    A build keeps what fits; one in int8, which takes pictures to calibrate, cannot be had otherwise. ``built`` is only
    read, and need not exist.
    """
    for model in (built / name, *built.glob(f"{name}_*")):
        for file in (path for kind in _KINDS for path in model.glob(kind)):
            copy = repository / file.relative_to(built)
            copy.parent.mkdir(parents=True, exist_ok=True)
            # A build replaces a network's file, but writes the others in place: they must be copies.
            if file.suffix != ".onnx":
                shutil.copyfile(file, copy)
                continue
            try:
                os.link(file, copy)
            except OSError:
                shutil.copyfile(file, copy)
