"""Reads the files that a pipeline names beside its network: labels, anchors, a background."""

from __future__ import annotations

import io
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.postprocess.labels import labels_in, text_of
from onestream.serving.errors import BadPipeline
from onestream.serving.pipeline import Pipeline


def labels_of(pipeline: Pipeline, beside: Path) -> str | None:
    """The text of the served model's labels file: a class, or a character, on each line.

    Paths are relative to ``beside``. Raises ``BadPipeline`` where a file cannot be read, or a model would not load it.
    """
    options = pipeline.postprocess
    option, named = options.named_labels
    if named is None:
        return None
    if isinstance(named, tuple):
        return text_of(named)
    if option == "labels" and named in _OWN_LABELS:
        return (resources.files("onestream.serving") / "data" / f"{named}_labels.txt").read_text("utf-8")
    return _labels(beside / named, option, spaces=options.labels_have_spaces)


def _labels(path: Path, option: str, *, spaces: bool = False) -> str:
    field = f"postprocess.{option}"
    try:
        return text_of(labels_in(_read(path, field, most=_MOST_LABEL_BYTES), str(path), spaces=spaces))
    except ValueError as error:
        raise BadPipeline(f"{field}: {error}") from None


def anchors_of(pipeline: Pipeline, beside: Path) -> npt.NDArray[Any] | None:
    """The array in the file that a kind's options name, such as anchors. Raises as ``labels_of``."""
    named = pipeline.postprocess.network_file
    if named is None:
        return None
    option, path = named
    return read_array(_read(beside / path, f"postprocess.{option}", most=_MOST_ARRAY_BYTES), f"postprocess.{option}")


def background_of(pipeline: Pipeline, beside: Path) -> bytes | None:
    """The content of the file that streams need, such as the picture of a background. Raises as ``labels_of``."""
    named = pipeline.postprocess.frames_file
    if named is None:
        return None
    field, path = f"postprocess.{named[0]}", beside / named[1]
    content = _read(path, field, most=pipeline.limits.max_body_bytes)
    try:
        pipeline.postprocess.check_frames_file(content)
    except ValueError as error:
        raise BadPipeline(f"{field}: {path}: {error}") from None
    return content


def read_array(content: bytes, field: str) -> npt.NDArray[Any]:
    """The array in a file of NumPy. Raises ``BadPipeline`` where it is none."""
    try:
        table = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, OSError, EOFError, MemoryError) as error:
        raise BadPipeline(f"{field}: not a file of NumPy (.npy): {error}") from None
    if not isinstance(table, np.ndarray):
        raise BadPipeline(f"{field}: expected one array (.npy), got several (.npz)")
    return table


_OWN_LABELS = ("coco", "imagenet")
_MOST_ARRAY_BYTES = 1 << 24
"""The largest file of an array; 100,000 anchors take 3.2 MB as float64."""
_MOST_LABEL_BYTES = 1 << 24
"""The largest file of labels; the 1000 of ImageNet take 11 kB."""


def _read(path: Path, field: str, *, most: int) -> bytes:
    """The content of a file that a pipeline names. Raises ``BadPipeline``."""
    try:
        if path.exists() and not path.is_file():
            raise BadPipeline(f"{field}: {path}: expected a file")
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise BadPipeline(f"{field}: {path}: {error.strerror}; expected a file") from None
    except ValueError as error:
        raise BadPipeline(f"{field}: {str(path)[:60]!r} is no path: {error}") from None
    if len(content) > most:
        raise BadPipeline(f"{field}: {path} has more than {most} bytes")
    return content
