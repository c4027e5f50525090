"""Video streams of the pipeline classify; the code is in ``serving.video``."""

from serving.video.model import Video as TritonPythonModel

__all__ = ["TritonPythonModel"]
