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
from onestream.preprocess.training.detection.loader import (
    DetectionBatch,
    DetectionDataset,
    DetectionItem,
    DetectionLoader,
)
from onestream.preprocess.training.detection.voc import read_voc
from onestream.preprocess.training.detection.yolo import read_yolo
from onestream.preprocess.training.map_style import Dataset, Transform
from onestream.preprocess.training.picture_loader import ImageLoader
from onestream.preprocess.training.segmentation.files import (
    IGNORE,
    SegmentationFiles,
    SegmentationSample,
    read_masks,
)
from onestream.preprocess.training.segmentation.loader import (
    SegmentationBatch,
    SegmentationDataset,
    SegmentationLoader,
)
from onestream.preprocess.training.sources.cache import Cache
from onestream.preprocess.training.sources.hugging_face import HuggingFaceRows, read_hugging_face
from onestream.preprocess.training.sources.labels import NO_LABEL, Labels
from onestream.preprocess.training.sources.parquet_files import ParquetFiles, read_parquet
from onestream.preprocess.training.sources.samples import Files, InMemory, Samples, with_labels
from onestream.preprocess.training.sources.tables import read_labels
from onestream.preprocess.training.sources.tar_files import TarFiles, read_tar
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
    "Cache",
    "Characters",
    "Dataset",
    "DetectionBatch",
    "DetectionDataset",
    "DetectionFiles",
    "DetectionItem",
    "DetectionLoader",
    "DetectionSample",
    "Files",
    "HuggingFaceRows",
    "ImageLoader",
    "InMemory",
    "Labels",
    "ParquetFiles",
    "Samples",
    "SegmentationBatch",
    "SegmentationDataset",
    "SegmentationFiles",
    "SegmentationLoader",
    "SegmentationSample",
    "Skipped",
    "TarFiles",
    "TextBatch",
    "TextFiles",
    "TextLine",
    "TextLoader",
    "Transform",
    "moved_mask",
    "read_coco",
    "read_hugging_face",
    "read_icdar",
    "read_labels",
    "read_masks",
    "read_parquet",
    "read_tar",
    "read_text_lines",
    "read_voc",
    "read_yolo",
    "visible_boxes",
    "visible_keypoints",
    "visible_points",
    "visible_quads",
    "with_labels",
]
