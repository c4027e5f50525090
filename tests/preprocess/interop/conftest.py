"""The libraries that are imported from; tests are skipped where one is not installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from lazily import Lazily

from onestream.preprocess.interop import libraries


@pytest.fixture(scope="session", autouse=True)
def libraries_installed() -> None:
    """The others are imported by the tests that use them: it takes seconds."""
    for name in ("torchvision", "timm", "transformers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    # The others import it by themselves, which fails beside a PyTorch that it was not built for.
    libraries.load("torchvision")


@pytest.fixture
def registered() -> Iterator[None]:
    """The auto classes of transformers find the drop-in processors, for one test."""
    from onestream.preprocess.patches import for_transformers, videos_for_transformers

    auto = Lazily("transformers").models.auto
    mappings = (
        auto.image_processing_auto.IMAGE_PROCESSOR_MAPPING._extra_content,
        auto.video_processing_auto.VIDEO_PROCESSOR_MAPPING._extra_content,
    )
    before = [dict(mapping) for mapping in mappings]
    for_transformers.register()
    videos_for_transformers.register()
    yield
    for mapping, content in zip(mappings, before, strict=True):
        mapping.clear()
        mapping.update(content)
