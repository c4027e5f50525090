"""The folder for what a running server writes about its repository: the socket of its commands, pinned versions."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

RUN_DIR_VARIABLE = "ONESTREAM_RUN_DIR"


def run_folder(repository: Path) -> Path:
    """The repository itself; where ``ONESTREAM_RUN_DIR`` names a folder, a folder in that, which need not exist.

    Server and commands must have the same variable. It is for repositories that are read-only, as in containers.
    """
    base = os.environ.get(RUN_DIR_VARIABLE)
    if not base:
        return repository
    return Path(base) / hashlib.sha256(os.fsencode(repository.resolve())).hexdigest()[:16]
