"""Lets torchvision be imported beside a PyTorch that it was not built for, as the importer does."""

from __future__ import annotations

import importlib.util

import pytest

from onestream.preprocess.interop import libraries


def load() -> None:
    """Import torchvision, or skip the calling test module where it is not installed."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed", allow_module_level=True)
    libraries.load("torchvision")
