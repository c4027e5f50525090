"""The errors of the built-in networks. The tree is drawn in ``serving/errors.py``."""

from __future__ import annotations

from onestream.postprocess import ServingError


class WeightsError(ServingError):
    """The weights could not be fetched or are not the expected ones; the message says what to do."""


class BadGraph(ServingError, ValueError):
    """A TensorFlow.js graph holds something that is not converted; the message names the node."""


class CheckpointError(ServingError, ValueError):
    """The file is not a legacy checkpoint of plain tensors, is cut short, or names something not allowed."""
