"""Loaders for PyTorch over the same definition that serving runs.

>>> from preprocess.training import Augmentation, ImageLoader
>>> with ImageLoader(definition, "photos/train", batch_size=64, train=True) as loader:   # doctest: +SKIP
...     for images, labels, indices in loader:
...         ...

Importing this package needs PyTorch: ``pip install 'onestream[train]'``.
"""

from preprocess.errors import BackendMissing

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise BackendMissing("preprocess.training needs PyTorch: pip install 'onestream[train]'") from error

from preprocess.training.augmentation import Augmentation
from preprocess.training.epochs import PADDING_LABEL, Skipped
from preprocess.training.loader import Batch, ImageLoader
from preprocess.training.samples import NO_LABEL, Files, InMemory, Samples

__all__ = [
    "NO_LABEL",
    "PADDING_LABEL",
    "Augmentation",
    "Batch",
    "Files",
    "ImageLoader",
    "InMemory",
    "Samples",
    "Skipped",
]
