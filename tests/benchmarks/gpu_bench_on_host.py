"""``gpu_bench_on_host.py ARGUMENT...``: runs ``benchmarks.gpu`` on host memory in place of a GPU.

What the benchmark must not need cannot be imported.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
ABSENT = ("tritonclient", "typer", "rich", "skimage", "sklearn", "matplotlib", "torch", "pytriton")
sys.path[:0] = [str(TESTS), str(TESTS.parent)]
for _name in ABSENT:
    sys.modules[_name] = None  # type: ignore[assignment]


def main() -> int:
    """Install the stand-ins and run the benchmark's command line."""
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
    from benchmarks.gpu.__main__ import main as measure

    return measure()


if __name__ == "__main__":
    raise SystemExit(main())
