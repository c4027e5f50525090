"""Lets torchvision be imported beside a CPU build of PyTorch, for which there is no matching wheel on every index."""

from __future__ import annotations

import pytest
import torch


def load() -> None:
    """Import torchvision, or skip the calling test module where it is not installed.

    A torchvision built for CUDA registers metadata of operators that its library, which needs CUDA, would declare.
    """
    try:
        torch.ops.torchvision.nms  # noqa: B018
    except (AttributeError, RuntimeError):
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        # Kept for the life of the process: the declaration goes when the library does.
        torch.__dict__.setdefault("_declared_for_torchvision", library)
    pytest.importorskip("torchvision")
