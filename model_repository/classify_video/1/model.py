"""Video streams of the pipeline classify; the code is in ``onestream.serving.video``."""

from onestream.serving.video.model import Video as TritonPythonModel

__all__ = ["TritonPythonModel"]
