"""Puts host memory in the place of a GPU in workers of Ray, and waits until all that are expected are there.

Each worker leaves a file, named by its process, which says which GPUs Ray showed it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from patience import wait_until

FOLDER, COUNT = "ONESTREAM_TEST_WORKERS", "ONESTREAM_TEST_WORKER_COUNT"
"""Environment variables: where the files go, and how many workers are expected."""
_BEFORE = "onestream.cli.bulk.ray.answering"


class Finder:
    """Finds nothing; installs host memory before what opens models is imported."""

    is_waiting = True

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> None:  # noqa: ARG003
        if name == _BEFORE and cls.is_waiting:
            cls.is_waiting = False
            install()


def install() -> None:
    """Let ``open_device`` open host memory, when all workers are there."""
    import host_gpu

    host_gpu.install()
    from onestream.preprocess.cuda import device

    open_device = device.open_device

    def open_together(index: int = 0) -> Any:
        folder = Path(os.environ[FOLDER])
        (folder / str(os.getpid())).write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
        wait_until(lambda: len(list(folder.iterdir())) >= int(os.environ[COUNT]))
        return open_device(index)

    device.open_device = open_together


# Tests import this file, too, for the names above.
if FOLDER in os.environ:
    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
