"""Fused of the pipeline classify; the code is in ``serving.adapters``."""

from serving.adapters import Fused as TritonPythonModel

__all__ = ["TritonPythonModel"]
