"""Changes workers of Ray before they open a model, some of which wait until all that are expected are there."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from patience import wait_until

_TESTS = Path(__file__).parents[2]
_FOLDER, _COUNT = "ONESTREAM_TEST_WORKERS", "ONESTREAM_TEST_WORKER_COUNT"
_BEFORE = "onestream.cli.bulk.ray.answering"


class Hooks:
    """``variables`` are a node's environment, whose workers call ``install``, a function of this module.

    ``workers`` is how many of them wait for each other in ``arrive``.
    """

    def __init__(self, folder: Path, install: Callable[[], None], *, workers: int = 0) -> None:
        start, self._seen = folder / "hooks", folder / "seen"
        start.mkdir()
        self._seen.mkdir()
        (start / "sitecustomize.py").write_text(
            f"import sys\nsys.path += {[str(_TESTS), str(Path(__file__).parent)]}\n"
            f"import ray_hooks\nray_hooks.before_models(ray_hooks.{install.__name__})\n"
        )
        path = os.pathsep.join([str(start), str(_TESTS.parent)])
        self.variables = {"PYTHONPATH": path, _FOLDER: str(self._seen), _COUNT: str(workers)}

    def said(self) -> list[str]:
        """What the workers said that arrived, sorted."""
        return sorted(path.read_text() for path in self._seen.iterdir())


def before_models(install: Callable[[], None]) -> None:
    """In this process, call ``install`` before what opens models is imported."""

    class Finder:
        """Finds nothing; is asked for every module."""

        is_waiting = True

        def find_spec(self, name: str, *_: Any) -> None:
            if name == _BEFORE and self.is_waiting:
                self.is_waiting = False
                install()

    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]


def arrive(says: str) -> None:
    """In a worker: say something, and wait until all workers that are expected have."""
    folder = Path(os.environ[_FOLDER])
    (folder / str(os.getpid())).write_text(says)
    wait_until(lambda: len(list(folder.iterdir())) >= int(os.environ[_COUNT]))


def open_host_memory() -> None:
    """Put host memory in the place of a GPU; workers say which GPUs Ray showed them."""
    import host_gpu

    host_gpu.install()
    from onestream.preprocess.cuda import device

    open_device = device.open_device

    def open_together(index: int = 0) -> Any:
        arrive(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
        return open_device(index)

    device.open_device = open_together


def say_thread_counts() -> None:
    """Let workers say how many threads their network has."""
    import onnxruntime

    open_session = onnxruntime.InferenceSession

    def open_together(source: Any, options: Any, **others: Any) -> Any:
        arrive(str(options.intra_op_num_threads))
        return open_session(source, options, **others)

    onnxruntime.InferenceSession = open_together


def crash_at_deadly_pictures() -> None:
    """Let a picture do what a bug of a library would; two attempts are made in place of the five of test_ray_work."""
    from onestream.cli.bulk.ray import attempts
    from onestream.client import images

    attempts.MOST_ATTEMPTS = 2
    encode = images.encode

    def crash_or_encode(image: Any, **options: Any) -> Any:
        encoded = encode(image, **options)
        if encoded.to_bytes() == b"deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        return encoded

    images.encode = crash_or_encode
