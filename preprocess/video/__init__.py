"""Clips of video: which frames, decoding, and colour. No PyTorch in it.

>>> from preprocess.video import Clip, ClipMaker
>>> maker = ClipMaker(definition, Clip(num_frames=16, stride=4, pad_mode="edge"))  # doctest: +SKIP
>>> maker.make("clip.mp4").shape                                                   # doctest: +SKIP
(16, 3, 224, 224)

Importing this package needs PyAV: ``pip install 'onestream[video]'``.
"""

from preprocess.errors import BackendMissing

try:
    import av as _av  # noqa: F401
except ImportError as error:
    raise BackendMissing("preprocess.video needs PyAV: pip install 'onestream[video]'") from error

from preprocess.video.clips import Clip, Timeline, choose_frames
from preprocess.video.color import ColorRule
from preprocess.video.decode import VideoFile
from preprocess.video.maker import ClipMaker

__all__ = ["Clip", "ClipMaker", "ColorRule", "Timeline", "VideoFile", "choose_frames"]
