"""Call pipelines served by Triton.

::

    from client import Client

    with Client("127.0.0.1:8001") as client:
        print(client.classify("cat.jpg").top)
        for item in client.classify_many(paths, in_flight=16):
            print(item.source, item.result or item.error)

What is named here is the public surface; ``client.errors`` draws the tree of errors.
"""

from client._client import DEFAULT_MAX_BODY_BYTES, DEFAULT_URL, Client
from client.errors import (
    BadImage,
    CannotConnect,
    ClientClosed,
    InvalidRequest,
    ModelNotFound,
    OnestreamError,
    ServerFailed,
    ServerOverloaded,
    ServerRefused,
    ServerUnavailable,
    SharedMemoryUnavailable,
    TimedOut,
    UnexpectedResponse,
    UnreadableInput,
    UnsupportedInput,
)
from client.images import ImageInput
from client.results import Classification, Item, Label, ServerInfo
from client.statistics import ModelStatistics, Phase
from client.transports.base import Transport

__all__ = [
    "DEFAULT_MAX_BODY_BYTES",
    "DEFAULT_URL",
    "BadImage",
    "CannotConnect",
    "Classification",
    "Client",
    "ClientClosed",
    "ImageInput",
    "InvalidRequest",
    "Item",
    "Label",
    "ModelNotFound",
    "ModelStatistics",
    "OnestreamError",
    "Phase",
    "ServerFailed",
    "ServerInfo",
    "ServerOverloaded",
    "ServerRefused",
    "ServerUnavailable",
    "SharedMemoryUnavailable",
    "TimedOut",
    "Transport",
    "UnexpectedResponse",
    "UnreadableInput",
    "UnsupportedInput",
]
