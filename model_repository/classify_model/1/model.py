"""Network of the pipeline classify; the code is in ``serving.adapters``."""

from serving.adapters import Network as TritonPythonModel

__all__ = ["TritonPythonModel"]
