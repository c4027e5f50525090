"""Call pipelines served by Triton.

::

    from onestream.client import Client

    with Client("127.0.0.1:8001") as client:
        print(client.classify("cat.jpg").top)
        for item in client.classify_many(paths, in_flight=16):
            print(item.source, item.result or item.error)
        with client.stream("clip.mp4") as frames:
            for frame in frames:
                print(frame.frame_index, frame.pts_seconds, frame.result)

``AsyncClient`` is the same for asyncio. What is named here is the public surface; ``onestream.client.errors`` draws the
tree of errors, ``onestream.client.video`` has the sources of video streams.
"""

from onestream.client._async_client import AsyncClient
from onestream.client._client import Client
from onestream.client._transports.base import (
    DEFAULT_MAX_ANSWER_BYTES,
    InferRequest,
    RegionSlice,
    RequestMetadata,
    SharedMemoryRegion,
    Tensors,
)
from onestream.client._transports.transport import Transport
from onestream.client._transports.transport_aio import AsyncTransport
from onestream.client.errors import (
    BadImage,
    BadStream,
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
    TruncatedInput,
    UnexpectedResponse,
    UnreadableInput,
    UnsupportedInput,
)
from onestream.client.images import ImageInput
from onestream.client.kinds import (
    Classification,
    DenseMap,
    Detections,
    Embedding,
    InstanceMasks,
    Keypoints,
    Matte,
    OrientedBoxes,
    Outputs,
    Reading,
    Regions,
    Result,
    Rotation,
    Segmentation,
    Text,
)
from onestream.client.kinds.classification import Label
from onestream.client.kinds.detection import Detection
from onestream.client.kinds.regions import Region
from onestream.client.ordered import Item
from onestream.client.statistics import ModelStatistics, Phase, ServerInfo
from onestream.client.video import FrameResult, Reconnect, Stream
from onestream.wire.limits import DEFAULT_MAX_BODY_BYTES, DEFAULT_URL
from onestream.wire.priority import Priority

__all__ = [
    "DEFAULT_MAX_ANSWER_BYTES",
    "DEFAULT_MAX_BODY_BYTES",
    "DEFAULT_URL",
    "AsyncClient",
    "AsyncTransport",
    "BadImage",
    "BadStream",
    "CannotConnect",
    "Classification",
    "Client",
    "ClientClosed",
    "DenseMap",
    "Detection",
    "Detections",
    "Embedding",
    "FrameResult",
    "ImageInput",
    "InferRequest",
    "InstanceMasks",
    "InvalidRequest",
    "Item",
    "Keypoints",
    "Label",
    "Matte",
    "ModelNotFound",
    "ModelStatistics",
    "OnestreamError",
    "OrientedBoxes",
    "Outputs",
    "Phase",
    "Priority",
    "Reading",
    "Reconnect",
    "Region",
    "RegionSlice",
    "Regions",
    "RequestMetadata",
    "Result",
    "Rotation",
    "Segmentation",
    "ServerFailed",
    "ServerInfo",
    "ServerOverloaded",
    "ServerRefused",
    "ServerUnavailable",
    "SharedMemoryRegion",
    "SharedMemoryUnavailable",
    "Stream",
    "Tensors",
    "Text",
    "TimedOut",
    "Transport",
    "TruncatedInput",
    "UnexpectedResponse",
    "UnreadableInput",
    "UnsupportedInput",
]
