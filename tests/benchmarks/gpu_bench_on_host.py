"""``gpu_bench_on_host.py ARGUMENT...``: runs ``benchmarks.gpu`` on host memory in place of a GPU.

What the benchmark must not need cannot be imported.
"""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import sys
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

TESTS = Path(__file__).parents[1]
ABSENT = ("tritonclient", "typer", "rich", "skimage", "sklearn", "matplotlib", "torch", "pytriton")
sys.path[:0] = [str(TESTS), str(TESTS.parent)]
for _name in ABSENT:
    sys.modules[_name] = None  # type: ignore[assignment]


def main(module: str = "benchmarks.gpu.__main__", *, broken: str | None = None) -> int:
    """Install the stand-ins and run the command line of a module; ``broken`` is as in ``_break``."""
    import host_gpu

    host_gpu.install()
    from onestream.preprocess.backends import dali

    class HostDali(dali.Dali):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "device": "cpu"})

        def run_on_device(self, images: Any, varies: Any = None) -> tuple[Any, dict[int, Any]]:
            self.run(images, varies)
            return None, {}

    dali.Dali = HostDali  # type: ignore[misc]
    _break(*(broken or "nothing works").split())
    return int(importlib.import_module(module).main())


def _break(library: str, how: str) -> None:
    """Let a library work for some calls, and then fail, crash or hang in each."""
    import host_gpu
    import host_nvimgcodec

    owner, name, good = {
        "nothing": (host_gpu.HostStream, "sync", 0),
        "nvImageCodec": (host_nvimgcodec.Decoder, "decode", 20),
        "kernels": (host_gpu.HostStream, "launch", 60),
        "network": (host_gpu.HostSession, "enqueue", 0),
    }[library]
    works, calls = getattr(owner, name), itertools.count()

    def broken(*arguments: Any, **options: Any) -> Any:
        if next(calls) >= good:
            {"fails": fail, "crashes": partial(os.kill, os.getpid(), signal.SIGSEGV), "hangs": Event().wait}[how]()
        return works(*arguments, **options)

    def fail() -> None:
        raise RuntimeError(f"{library} fails")

    if library != "nothing":
        setattr(owner, name, broken)


if __name__ == "__main__":
    raise SystemExit(main())
