"""Lets torchvision be imported beside a CPU build of PyTorch, for which there is no matching wheel on every index."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
import torch

_KEPT: list[torch.library.Library] = []
"""Declarations go when their library does."""


def load() -> None:
    """Import torchvision, or skip the calling test module where it is not installed.

    A torchvision built for CUDA describes operators that its own library would declare, and that library does not load
    without CUDA. Where it does load, declaring them again would abort the process; so another process tries first.
    """
    if "torchvision" in sys.modules:
        return
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed", allow_module_level=True)
    if subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True).returncode != 0:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)
    importlib.import_module("torchvision")
