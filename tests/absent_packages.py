"""A pytest plugin that hides what a bare GPU machine lacks: to import this is enough.

It has Python, PyTorch, NumPy, OpenCV, Pillow, ONNX, pytest and CUDA's own packages, and what is carried to it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

ABSENT = (
    *("tritonclient", "geventhttpclient", "pytriton", "nvidia_pytriton"),
    *("typer", "rich", "prometheus_client", "aiohttp", "grpc"),
    *("tensorrt", "tensorrt_rtx", "skimage", "sklearn", "matplotlib", "pyarrow", "psutil"),
)


class Absent:
    """A finder that finds none of them, whatever is installed."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> None:  # noqa: ARG004
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent)  # type: ignore[arg-type]
