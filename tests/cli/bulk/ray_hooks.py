"""Changes workers of Ray before they open a model, and waits until all that are expected are there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from patience import wait_until

_TESTS = Path(__file__).parents[2]
_FOLDER, _COUNT = "ONESTREAM_TEST_WORKERS", "ONESTREAM_TEST_WORKER_COUNT"
_BEFORE = "onestream.cli.bulk.ray.answering"


class Hooks:
    """``variables`` are a node's environment, whose workers call ``install`` of a ``module`` of this folder.

    ``workers`` is how many of them wait for each other in ``arrive``.
    """

    def __init__(self, folder: Path, module: str, *, workers: int) -> None:
        start, self._seen = folder / "hooks", folder / "seen"
        start.mkdir()
        self._seen.mkdir()
        paths = [str(_TESTS), str(Path(__file__).parent)]
        lines = ["import sys", f"sys.path += {paths!r}", f"import ray_hooks, {module} as hook"]
        (start / "sitecustomize.py").write_text("\n".join([*lines, "ray_hooks.before_models(hook.install)", ""]))
        self.variables = {
            "PYTHONPATH": os.pathsep.join([str(start), str(_TESTS.parent)]),
            _FOLDER: str(self._seen),
            _COUNT: str(workers),
        }

    def said(self) -> list[str]:
        """What the workers said that arrived, sorted."""
        return sorted(path.read_text() for path in self._seen.iterdir())


class _Finder:
    """Finds nothing; calls ``install`` once before what opens models is imported."""

    def __init__(self, install: Callable[[], None]) -> None:
        self._install = install
        self._is_waiting = True

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:  # noqa: ARG002
        if name == _BEFORE and self._is_waiting:
            self._is_waiting = False
            self._install()


def before_models(install: Callable[[], None]) -> None:
    """In this process, call ``install`` before what opens models is imported."""
    sys.meta_path.insert(0, _Finder(install))  # type: ignore[arg-type]


def arrive(says: str) -> None:
    """In a worker: say something, and wait until all workers that are expected have."""
    folder = Path(os.environ[_FOLDER])
    (folder / str(os.getpid())).write_text(says)
    wait_until(lambda: len(list(folder.iterdir())) >= int(os.environ[_COUNT]))
