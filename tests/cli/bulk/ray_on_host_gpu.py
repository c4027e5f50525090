"""Puts host memory in the place of a GPU in workers of Ray, which say which GPUs Ray showed them."""

from __future__ import annotations

import os
from typing import Any

from ray_hooks import arrive


def install() -> None:
    """Let ``open_device`` open host memory, when all workers are there."""
    import host_gpu

    host_gpu.install()
    from onestream.preprocess.cuda import device

    open_device = device.open_device

    def open_together(index: int = 0) -> Any:
        arrive(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
        return open_device(index)

    device.open_device = open_together
