"""Definitions from preprocessing that other libraries describe: exactly, or refused by name.

>>> from preprocess.importing import from_letterbox
>>> from_letterbox(640).output_spec.shape
(3, 640, 640)
"""

from preprocess.importing.huggingface_config import from_huggingface
from preprocess.importing.letterbox import from_letterbox
from preprocess.importing.source import FORMS, Imported, import_source
from preprocess.importing.timm_config import from_timm
from preprocess.importing.torchvision_transforms import from_torchvision

__all__ = [
    "FORMS",
    "Imported",
    "from_huggingface",
    "from_letterbox",
    "from_timm",
    "from_torchvision",
    "import_source",
]
