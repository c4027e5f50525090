"""``gpu_bench_on_host.py SCENARIO ARGUMENT...``: runs ``benchmarks.gpu`` on host memory in place of a GPU.

*whole*: everything is there. *poor*: no CV-CUDA, no OpenCV, no engine, and a DALI that mirrors its images. In both,
what the benchmark must not need cannot be imported.
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


def main(scenario: str) -> int:
    """Install the stand-ins of a scenario and run the benchmark's command line."""
    import host_gpu

    host_gpu.install()
    import onestream.serving.engine
    from onestream.preprocess.backends import dali
    from onestream.preprocess.errors import BackendMissing

    class HostDali(dali.Dali):
        def __init__(self, *arguments: Any, device: str, **options: Any) -> None:
            super().__init__(*arguments, device="cpu", **options)
            self._mirrored = device == "gpu" and scenario == "poor"

        def run(self, images: Any, varies: Any = None) -> Any:
            found = super().run(images, varies)
            return [one[..., ::-1] for one in found] if self._mirrored else found

        def run_on_device(self, images: Any, varies: Any = None) -> tuple[Any, dict[int, Any]]:
            self.run(images, varies)
            return None, {}

    dali.Dali = HostDali  # type: ignore[misc]
    if scenario == "poor":

        def no_engine(*_: Any, **__: Any) -> Any:
            raise BackendMissing("there is no engine here")

        onestream.serving.engine.open_engine = no_engine
        sys.modules["cv2"] = sys.modules["onestream.preprocess.backends.cvcuda"] = None  # type: ignore[assignment]
    from benchmarks.gpu.__main__ import main as measure

    return measure()


if __name__ == "__main__":
    scenario = sys.argv.pop(1)
    raise SystemExit(main(scenario))
