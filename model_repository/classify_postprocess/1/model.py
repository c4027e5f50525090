"""Postprocess of the pipeline classify; the code is in ``serving.adapters``."""

from serving.adapters import Postprocess as TritonPythonModel

__all__ = ["TritonPythonModel"]
