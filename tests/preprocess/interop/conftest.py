"""The libraries that are imported from; tests are skipped where one is not installed."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture(scope="session", autouse=True)
def libraries_installed() -> None:
    """They are imported by the tests that use them: it takes seconds."""
    for name in ("torchvision", "timm", "transformers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
