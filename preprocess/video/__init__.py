"""Clips of video: which frames, decoding, and colour. No PyTorch in it.

Importing this package needs PyAV: ``pip install 'onestream[video]'``.
"""

from preprocess.errors import BackendMissing

try:
    import av as _av  # noqa: F401
except ImportError as error:
    raise BackendMissing("preprocess.video needs PyAV: pip install 'onestream[video]'") from error
