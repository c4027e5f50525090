"""Fused of the pipeline classify; the code is in ``onestream.serving.models.image``."""

from onestream.serving.models.image import Fused as TritonPythonModel

__all__ = ["TritonPythonModel"]
