"""What can go wrong in building a repository.

::

    ServingError
    ├── BadPipeline       a pipeline file is malformed; the message names the field
    ├── BadNetwork        an ONNX file cannot be served by this definition; the message says what was seen
    └── (server errors)   see serving/server.py
"""

from __future__ import annotations


class ServingError(Exception):
    """Base of everything this room raises on purpose."""


class BadPipeline(ServingError):
    """A pipeline file is malformed."""


class BadNetwork(ServingError):
    """An ONNX file cannot be served with a definition."""
