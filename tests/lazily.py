"""Large libraries that are imported when a test first uses them, not by every process that collects tests."""

from __future__ import annotations

from typing import Any

from onestream.preprocess.interop import libraries


class Lazily:
    """A module of torch, torchvision, timm or transformers, as ``import`` would name it."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)  # pytest looks at every object of a test module
        return getattr(libraries.load(self._module), name)
