"""Postprocess of the pipeline classify; the code is in ``onestream.serving.models.image``."""

from onestream.serving.models.image import Postprocess as TritonPythonModel

__all__ = ["TritonPythonModel"]
