"""The errors of building and serving.

::

    ServingError
    ├── BadPipeline       a pipeline file is malformed; the message names the field
    ├── BadNetwork        an ONNX file cannot be served by this definition; the message says what was seen
    ├── BadProxy          a proxy cannot be made of what was given; the message says what is expected
    ├── ProxyDied         nginx ended by itself; it has said why
    ├── BadVersion        a version of a pipeline is not there, or cannot be served in the place of another
    ├── BadPlan           a TensorRT plan cannot be built, kept or used on this machine; the message says why
    ├── WeightsError      the built-in network's weights could not be fetched; the message says what to do
    ├── BadGraph          a TensorFlow.js graph holds what is not converted; the message names the node
    ├── CheckpointError   a weights file is damaged or holds what it may not
    └── ServerError       the server did not start or died; its subclasses are drawn in serving/server/errors.py

``NetworkFailed`` is for models alone, which answer it.
"""

from __future__ import annotations

from onestream.postprocess import BadNetwork, BadPipeline, ServingError

__all__ = ["BadNetwork", "BadPipeline", "ServingError"]


class BadProxy(ServingError):
    """A proxy cannot be made of what was given."""


class ProxyDied(ServingError):
    """nginx, run as a proxy, ended by itself."""


class BadVersion(ServingError):
    """A version of a pipeline was not built, or cannot take the place of the one that is served."""


class BadPlan(ServingError):
    """A TensorRT plan cannot be built, kept or used here."""


class NetworkFailed(Exception):
    """A network gave no outputs for a sample. ``is_overload``: it may be asked again later."""

    def __init__(self, reason: str, *, is_overload: bool = False) -> None:
        super().__init__(reason)
        self.is_overload = is_overload
