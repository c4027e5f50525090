"""Sources of training videos: a folder, a file list, or paths."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from onestream.preprocess.errors import BadDataset
from onestream.preprocess.training.samples import NO_LABEL, Files

VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts", ".flv", ".h264", ".hevc")

VideoPath = str | os.PathLike[str]
VideoFilesSource = VideoPath | Files | Iterable[VideoPath | tuple[VideoPath, int]]
"""A folder, a file list, files of one's own, or an iterable of paths or (path, label)."""


def video_files_of(source: VideoFilesSource) -> Files:
    """The videos that a source stands for.

    A folder holds one folder of videos per class, labelled in the order of their names, or videos without labels. A
    list holds lines of a path, a space or tab and a label. Raises ``BadDataset`` naming what was seen and expected.
    """
    if isinstance(source, Files):
        return source
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.is_file() and path.suffix.lower() in VIDEO_SUFFIXES:
            raise BadDataset(f"{path} is one video; expected a folder, a file list, or an iterable of paths")
        return Files.from_list(path) if path.is_file() else _from_folder(path)
    pairs = [item if isinstance(item, tuple) else (item, NO_LABEL) for item in source]
    if not pairs:
        raise BadDataset("got no video")
    return Files([Path(path) for path, _ in pairs], [label for _, label in pairs])


def _from_folder(folder: Path) -> Files:
    if not folder.is_dir():
        raise BadDataset(f"{folder} is not a folder")
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    loose = _videos(folder.iterdir())
    if classes and loose:
        raise BadDataset(f"{folder} has folders of classes and videos beside them, such as {loose[0].name}")
    found = [(path, label) for label, name in enumerate(classes) for path in _videos((folder / name).rglob("*"))]
    found += [(path, NO_LABEL) for path in loose]
    if not found:
        raise BadDataset(f"no video in {folder}; expected files that end in {', '.join(VIDEO_SUFFIXES)}")
    return Files([path for path, _ in found], [label for _, label in found], classes)


def _videos(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.suffix.lower() in VIDEO_SUFFIXES and path.is_file())
