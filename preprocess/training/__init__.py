"""Loaders for PyTorch over the same definition that serving runs.

>>> from onestream.preprocess.training import Augmentation, ImageLoader
>>> with ImageLoader(definition, "photos/train", batch_size=64, train=True) as loader:   # doctest: +SKIP
...     for images, labels, indices in loader:
...         ...

Importing this package needs PyTorch: ``pip install -e '.[train]'``.
"""

from onestream.preprocess.errors import BackendMissing
from onestream.wire.install import install_command

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise BackendMissing(f"onestream.preprocess.training needs PyTorch: {install_command('train')}") from error

from onestream.preprocess.training.augmentation import Augmentation
from onestream.preprocess.training.base_loader import PADDING_LABEL, Batch, Skipped
from onestream.preprocess.training.detection.coco import read_coco
from onestream.preprocess.training.detection.files import DetectionFiles, DetectionSample
from onestream.preprocess.training.detection.loader import DetectionBatch, DetectionLoader
from onestream.preprocess.training.detection.voc import read_voc
from onestream.preprocess.training.detection.yolo import read_yolo
from onestream.preprocess.training.picture_loader import ImageLoader
from onestream.preprocess.training.samples import NO_LABEL, Files, InMemory, Samples
from onestream.preprocess.training.segmentation.files import (
    IGNORE,
    SegmentationFiles,
    SegmentationSample,
    read_masks,
)
from onestream.preprocess.training.segmentation.loader import SegmentationBatch, SegmentationLoader
from onestream.preprocess.training.targets import (
    moved_mask,
    visible_boxes,
    visible_keypoints,
    visible_points,
    visible_quads,
)
from onestream.preprocess.training.text.characters import Characters
from onestream.preprocess.training.text.files import TextFiles, TextLine
from onestream.preprocess.training.text.icdar import read_icdar
from onestream.preprocess.training.text.json_lines import read_text_lines
from onestream.preprocess.training.text.loader import TextBatch, TextLoader

__all__ = [
    "IGNORE",
    "NO_LABEL",
    "PADDING_LABEL",
    "Augmentation",
    "Batch",
    "Characters",
    "DetectionBatch",
    "DetectionFiles",
    "DetectionLoader",
    "DetectionSample",
    "Files",
    "ImageLoader",
    "InMemory",
    "Samples",
    "SegmentationBatch",
    "SegmentationFiles",
    "SegmentationLoader",
    "SegmentationSample",
    "Skipped",
    "TextBatch",
    "TextFiles",
    "TextLine",
    "TextLoader",
    "moved_mask",
    "read_coco",
    "read_icdar",
    "read_masks",
    "read_text_lines",
    "read_voc",
    "read_yolo",
    "visible_boxes",
    "visible_keypoints",
    "visible_points",
    "visible_quads",
]
