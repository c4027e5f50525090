"""Preprocess of the pipeline classify; the code is in ``serving.adapters``."""

from serving.adapters import Preprocess as TritonPythonModel

__all__ = ["TritonPythonModel"]
