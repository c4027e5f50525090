"""The samples that a source stands for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from onestream.preprocess.errors import BadDataset
from onestream.preprocess.headers.reader import Encoded
from onestream.preprocess.storage import remote
from onestream.preprocess.storage.files import ends_in
from onestream.preprocess.storage.parquet import PARQUET_SUFFIXES
from onestream.preprocess.storage.tar_headers import TAR_SUFFIXES
from onestream.preprocess.training.sources.hugging_face import is_hugging_face, read_hugging_face
from onestream.preprocess.training.sources.parquet_files import read_parquet
from onestream.preprocess.training.sources.samples import Files, FromDataset, InMemory, Items, Samples, is_map_style
from onestream.preprocess.training.sources.tar_files import read_tar

Source = str | os.PathLike[str] | Samples | Items | Iterable[Encoded | tuple[Encoded, Any]]
"""A folder, a file list, tar or Parquet files, a dataset of Hugging Face's library, samples of one's own, a dataset of
(bytes or path, label), or an iterable of bytes or (bytes, label), which is kept in memory."""


def samples_of(source: Source) -> Samples:
    """The samples that a source stands for. Raises ``BadDataset`` naming what was seen and what is expected."""
    if isinstance(source, str | os.PathLike):
        name = remote.local_path(os.fspath(source))
        if ends_in(name, TAR_SUFFIXES):
            return read_tar(name)
        if ends_in(name, PARQUET_SUFFIXES):
            return read_parquet(name)
        return Files.from_list(Path(name)) if os.path.isfile(name) else Files.from_folder(name)
    if is_hugging_face(source):
        return read_hugging_face(source)
    if all(hasattr(source, name) for name in ("__len__", "read", "label", "name", "classes")):
        return source  # type: ignore[return-value]
    if is_map_style(source):
        return FromDataset(source)  # type: ignore[arg-type]
    if isinstance(source, bytes | bytearray | memoryview | np.ndarray) or not isinstance(source, Iterable):
        raise BadDataset(f"got {type(source).__name__}; expected a folder, a file list, or an iterable of bytes")
    return InMemory(source)
