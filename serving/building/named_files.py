"""Reads the files that a pipeline names beside its network: labels, anchors, a background."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import numpy.typing as npt

from onestream.postprocess.kinds import Detection, Matte, PictureBackground
from onestream.postprocess.labels import labels_in, text_of
from onestream.postprocess.matte.background import read_picture
from onestream.serving.errors import BadPipeline
from onestream.serving.graph.detector_tail import read_anchors
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
    """The anchors in the file that a detector's options name. Raises as ``labels_of``, ``BadNetwork`` for others."""
    options = pipeline.postprocess
    if not isinstance(options, Detection) or options.anchors is None:
        return None
    path = beside / options.anchors
    return read_anchors(_read(path, "postprocess.anchors", most=_MOST_ANCHOR_BYTES))


def background_of(pipeline: Pipeline, beside: Path) -> bytes | None:
    """The picture that a matte's background names, as its file. Raises as ``labels_of``."""
    options = pipeline.postprocess
    if not isinstance(options, Matte) or not isinstance(options.background, PictureBackground):
        return None
    path = beside / options.background.path
    content = _read(path, "postprocess.background.path", most=pipeline.limits.max_body_bytes)
    try:
        read_picture(content)
    except ValueError as error:
        raise BadPipeline(f"postprocess.background.path: {path}: {error}") from None
    return content


_OWN_LABELS = ("coco", "imagenet")
_MOST_ANCHOR_BYTES = 1 << 24
"""The largest file of anchors; 100,000 of them take 3.2 MB as float64."""
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
