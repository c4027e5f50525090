"""Clips of video: which frames, decoding, and colour. No PyTorch in it.

>>> from onestream.preprocess.video import Clip, ClipMaker
>>> maker = ClipMaker(definition, Clip(num_frames=16, stride=4, pad_mode="edge"))  # doctest: +SKIP
>>> maker.make("clip.mp4").shape                                                   # doctest: +SKIP
(16, 3, 224, 224)

Importing this package needs PyAV: ``pip install -e '.[video]'``.
"""

from onestream.preprocess.errors import BackendMissing
from onestream.wire.install import install_command

try:
    import av as _av  # noqa: F401
except ImportError as error:
    raise BackendMissing(f"onestream.preprocess.video needs PyAV: {install_command('video')}") from error

from onestream.preprocess.video.clips.choose_frames import Clip, Timeline, choose_frames
from onestream.preprocess.video.clips.decode import VideoFile
from onestream.preprocess.video.clips.maker import ClipMaker
from onestream.preprocess.video.common.color import ColorRule, Colors

__all__ = ["Clip", "ClipMaker", "ColorRule", "Colors", "Timeline", "VideoFile", "choose_frames"]
