"""Turns network outputs into the arrays that a pipeline returns. This package itself needs NumPy only.

The errors of networks and of options that do not suit each other are here; the tree is drawn in ``serving/errors.py``.
"""


class ServingError(Exception):
    """Base of everything that building and serving raise on purpose."""


class BadPipeline(ServingError):
    """A pipeline file is malformed."""


class BadNetwork(ServingError):
    """An ONNX file cannot be served with a definition."""
