"""The libraries that are imported from; tests are skipped where one is not installed."""

from __future__ import annotations

import importlib.util

import pytest

from onestream.preprocess.interop import libraries


@pytest.fixture(scope="session", autouse=True)
def libraries_installed() -> None:
    """The others are imported by the tests that use them: it takes seconds."""
    for name in ("torchvision", "timm", "transformers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    # The others import it by themselves, which fails beside a PyTorch that it was not built for.
    libraries.load("torchvision")
