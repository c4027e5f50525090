"""The errors of networks and of options that do not suit each other. The tree is drawn in ``serving/errors.py``."""

from __future__ import annotations


class ServingError(Exception):
    """Base of everything that building and serving raise on purpose."""


class BadPipeline(ServingError):
    """A pipeline file is malformed."""


class BadNetwork(ServingError):
    """An ONNX file cannot be served with a definition."""
