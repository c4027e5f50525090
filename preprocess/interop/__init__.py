"""Definitions from and for other libraries: exactly, or refused by name.

>>> from onestream.preprocess.interop import from_letterbox
>>> from_letterbox(640).output_spec.shape
(3, 640, 640)
"""

from onestream.preprocess.interop.common import Imported
from onestream.preprocess.interop.huggingface.config import from_huggingface
from onestream.preprocess.interop.huggingface.export import to_huggingface
from onestream.preprocess.interop.keras_modes import from_keras
from onestream.preprocess.interop.letterbox import from_letterbox
from onestream.preprocess.interop.open_clip import from_open_clip
from onestream.preprocess.interop.source import AUGMENTATION_FORMS, FORMS, import_augmentation, import_source
from onestream.preprocess.interop.timm_config import from_timm, to_timm
from onestream.preprocess.interop.to_torchvision import to_torchvision
from onestream.preprocess.interop.torchvision_transforms import from_torchvision

__all__ = [
    "AUGMENTATION_FORMS",
    "FORMS",
    "Imported",
    "from_huggingface",
    "from_keras",
    "from_letterbox",
    "from_open_clip",
    "from_timm",
    "from_torchvision",
    "import_augmentation",
    "import_source",
    "to_huggingface",
    "to_timm",
    "to_torchvision",
]
