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
    from onestream.preprocess import Definition, compile

__all__ = ["AsyncClient", "Client", "Definition", "compile"]

_HOMES = {
    "AsyncClient": "onestream.client",
    "Client": "onestream.client",
    "Definition": "onestream.preprocess",
    "compile": "onestream.preprocess",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'onestream' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
