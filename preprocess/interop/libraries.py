"""Libraries of networks and transforms, beside whatever PyTorch is installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar

from onestream.preprocess.errors import BackendMissing
from onestream.wire.install import install_command

Loaded = TypeVar("Loaded")

_COMMANDS = {"onnx": install_command("cpu"), "torch": install_command("train")}
"""Of what an extra brings; others are installed by their names."""
_UNFIT = "operator torchvision::"
_DECLARED: list[Any] = []
"""Declarations go when their library does."""


def load(module: str) -> Any:
    """A module of torchvision, timm, transformers or PyTorch.

    Raises ``BackendMissing`` naming the command that installs it.
    """
    package = module.partition(".")[0]
    if package == "transformers" and is_installed("torchvision"):
        # transformers imports it later, and hides why that failed.
        load("torchvision")
    try:
        return with_torchvision(lambda: importlib.import_module(module))
    except ImportError as error:
        command = _COMMANDS.get(package, f"pip install {package}")
        raise BackendMissing(f"{package} cannot be imported ({error}): {command}") from error
    except RuntimeError as error:
        raise BackendMissing(f"{package} cannot be imported: {error}; it must suit the installed PyTorch") from error


def is_installed(package: str) -> bool:
    """Whether a library can be found; it may still fail to import."""
    return importlib.util.find_spec(package) is not None


def with_torchvision(importing: Callable[[], Loaded]) -> Loaded:
    """As ``importing``, and works beside a torchvision whose own operators do not suit the installed PyTorch.

    A torchvision for CUDA beside a PyTorch without it cannot load its operators and then fails at import where it
    describes them. Weights and transforms need none, so their names are declared and it is imported again.
    """
    try:
        return importing()
    except RuntimeError as error:
        if _UNFIT not in str(error) or _DECLARED:
            raise
    torch = importlib.import_module("torch")
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _DECLARED.append(operators)
    return importing()
