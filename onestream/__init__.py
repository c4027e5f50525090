"""Vision models on NVIDIA Triton with one preprocessing definition for training and serving.

>>> from onestream import Client, Definition, compile
>>> definition = Definition.from_yaml(open("my_preprocess.yaml").read())                  # doctest: +SKIP
>>> (pixels,) = compile(definition, backend="reference").run([open("cat.jpg", "rb").read()])  # doctest: +SKIP
>>> print(Client("127.0.0.1:8001").classify("cat.jpg").top)                               # doctest: +SKIP

These are imported when they are first asked for, so that a client loads no preprocessing and training no client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onestream.client import AsyncClient, Client
    from onestream.preprocess import (
        CenterCrop,
        Decode,
        Definition,
        Letterbox,
        Normalize,
        Output,
        Pad,
        Patches,
        Resize,
        Tiles,
        compile,
    )
    from onestream.preprocess.training import Dataset, DetectionDataset, SegmentationDataset, Transform

__all__ = [
    "AsyncClient",
    "CenterCrop",
    "Client",
    "Dataset",
    "Decode",
    "Definition",
    "DetectionDataset",
    "Letterbox",
    "Normalize",
    "Output",
    "Pad",
    "Patches",
    "Resize",
    "SegmentationDataset",
    "Tiles",
    "Transform",
    "compile",
]
# Region, the operation, is onestream.preprocess.Region: onestream.client has results of that name.

_ELSEWHERE = {
    **dict.fromkeys(("AsyncClient", "Client"), "client"),
    **dict.fromkeys(("Dataset", "DetectionDataset", "SegmentationDataset", "Transform"), "preprocess.training"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'onestream' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    module = _ELSEWHERE.get(name, "preprocess")
    return getattr(import_module(f"onestream.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
