"""The errors of the built-in networks.

::

    NetworkError
    ├── WeightsError      weights could not be fetched; the message says what to do
    ├── BadGraph          a TensorFlow.js graph holds what is not converted; the message names the node
    └── CheckpointError   a weights file is damaged or holds what it may not
"""

from __future__ import annotations


class NetworkError(Exception):
    """Base of everything these modules raise on purpose."""


class WeightsError(NetworkError):
    """The weights could not be fetched or are not the expected ones; the message says what to do."""


class BadGraph(NetworkError, ValueError):
    """A TensorFlow.js graph holds something that is not converted; the message names the node."""


class CheckpointError(NetworkError, ValueError):
    """The file is not a legacy checkpoint of plain tensors, is cut short, or names something not allowed."""
