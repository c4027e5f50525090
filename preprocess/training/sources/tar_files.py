"""Samples in tar files as WebDataset has them: files of one key, such as 0001.jpg and 0001.cls, are one sample."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from onestream.preprocess.errors import BadDataset, BadSample
from onestream.preprocess.headers.reader import Encoded
from onestream.preprocess.storage.files import Version, files_named, read_part, version_of
from onestream.preprocess.storage.tar_index import Member, members_of
from onestream.preprocess.training.sources.blocks import KEPT_BYTES, RecentBlocks
from onestream.preprocess.training.sources.labels import NO_LABEL, Label, LabelKind, Labels, read_as
from onestream.preprocess.training.sources.paths import Paths
from onestream.preprocess.training.sources.samples import SUFFIXES

IMAGE_EXTENSIONS = tuple(suffix.removeprefix(".") for suffix in SUFFIXES)


class TarSample(NamedTuple):
    """A sample of a tar file: where its picture lies, or the ``problem`` that it cannot be used for."""

    file: int
    key: str
    offset: int
    size: int
    problem: str = ""


class TarFiles:
    """The samples of tar files; see ``read_tar``.

    ``block_starts`` are the first samples of the blocks that are read at once; empty where each sample is read alone.
    """

    def __init__(
        self,
        files: Sequence[str],
        samples: Sequence[TarSample],
        labels: Sequence[Label],
        *,
        versions: Sequence[Version],
        kind: Labels | None,
        block_bytes: int,
        kept_bytes: int,
    ) -> None:
        self.files, self.labels, self.kind = tuple(files), tuple(labels), kind
        self.classes: tuple[str, ...] = () if kind is None else kind.classes
        self._versions = tuple(versions)
        self._keys = Paths(one.key for one in samples)
        self._file = np.array([one.file for one in samples], np.int32)
        self._offset = np.array([one.offset for one in samples], np.int64)
        self._size = np.array([one.size for one in samples], np.int64)
        self._problems = {index: one.problem for index, one in enumerate(samples) if one.problem}
        self.block_starts = self._cut(block_bytes)
        self._blocks: RecentBlocks[bytes] = RecentBlocks(self._read_block, kept_bytes)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._keys)

    def read(self, index: int) -> Encoded:
        """See ``Samples.read``."""
        if index in self._problems:
            raise BadSample(self._problems[index])
        offset, size = int(self._offset[index]), int(self._size[index])
        if len(self.block_starts):
            number = int(np.searchsorted(self.block_starts, index, side="right")) - 1
            begin = offset - int(self._offset[self.block_starts[number]])
            image = self._blocks[number][begin : begin + size]
        else:
            image = self._read_part(int(self._file[index]), offset, size)
        if len(image) != size:
            raise BadSample(f"the tar file is cut: it has {len(image)} of the picture's {size} bytes")
        return image

    def label(self, index: int) -> Label:
        """See ``Samples.label``."""
        return self.labels[index]

    def name(self, index: int) -> str:
        """The tar file and the key."""
        return f"{self.files[self._file[index]]}: {self._keys.name(index)}"

    def _cut(self, block_bytes: int) -> npt.NDArray[np.int64]:
        """The first sample of each block: neighbours in one file, up to so many bytes; none where that is 0."""
        if not block_bytes:
            return np.empty(0, np.int64)
        starts = [0]
        ends = (self._offset + self._size).tolist()
        for index, (file, end) in enumerate(zip(self._file.tolist(), ends, strict=True)):
            if file != self._file[starts[-1]] or end - self._offset[starts[-1]] > block_bytes:
                starts.append(index)
        # The first sample may be larger than a block.
        return np.unique(starts)

    def _read_block(self, number: int) -> tuple[bytes, int]:
        first, beyond = [*self.block_starts[number : number + 2], len(self)][:2]
        begin, end = int(self._offset[first]), int(self._offset[beyond - 1] + self._size[beyond - 1])
        data = self._read_part(int(self._file[first]), begin, end - begin)
        return data, len(data)

    def _read_part(self, file: int, offset: int, size: int) -> bytes:
        return read_part(self.files[file], offset, size, version=self._versions[file])


def read_tar(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    image: str | Sequence[str] = IMAGE_EXTENSIONS,
    label: str | None = "cls",
    field: str | None = None,
    labels: LabelKind = "class",
    classes: Sequence[str] | None = None,
    index: str | os.PathLike[str] | None = None,
    block_bytes: int = 0,
    kept_bytes: int = KEPT_BYTES,
) -> TarFiles:
    """Read tar files of WebDataset: members with the same path up to the first dot of its last part are a sample.

    ``files``: paths or addresses, also with ``{0000..0127}`` and ``*``. ``image``: the extension of the picture, or
    several of which a sample has one. ``label``: the extension of the label, *cls* and others as text, those that end
    in *json* as JSON, of which ``field`` is the label; None for samples without labels. ``labels`` is the kind of
    label, with ``classes`` the names of all classes: see ``Labels``.

    Each file is looked through once, and what was found kept in the folder ``index``, if there is one. Samples are
    then read in any order; those of a file that has changed since are bad. ``block_bytes``: samples beside each other
    are read at once, up to so many bytes; 0 reads each alone. ``kept_bytes``: how much of the blocks stays in the
    memory of each process.

    Raises ``BadDataset`` naming the file, and the sample where there is one: for a damaged, cut or compressed file, a
    label that is missing or none of its kind, two pictures in a sample. A sample without a picture is bad when it is
    read.
    """
    if block_bytes < 0 or kept_bytes < 1:
        raise ValueError(f"block_bytes must be 0 or more and kept_bytes 1 or more, got {block_bytes} and {kept_bytes}")
    wanted = tuple(one.lower() for one in ((image,) if isinstance(image, str) else image))
    extension = None if label is None else label.lower()
    try:
        names = files_named(files)
    except OSError as error:
        raise BadDataset(f"{files} cannot be listed: {error}") from None
    folder = None if index is None else Path(index)
    versions: list[Version] = []
    samples: list[TarSample] = []
    found: list[Any] = []
    for number, file in enumerate(names):
        try:
            versions.append(version_of(file))
            of_file = members_of(file, versions[-1], contents_of=extension, folder=folder)
        except OSError as error:
            raise BadDataset(f"{file} cannot be read as a tar file: {error.strerror or error}") from None
        for members in _grouped(file, of_file):
            samples.append(_sample(file, number, members, wanted))
            found.append(_label(file, members, extension, field, samples[-1]))
    if all(one.problem for one in samples):
        reason = f"{names[0]}: {samples[0].key}: {samples[0].problem}" if samples else "got no member such as 0001.jpg"
        raise BadDataset(f"no picture in {', '.join(names[:3])}: {reason}")
    options: dict[str, Any] = {"versions": versions, "block_bytes": block_bytes, "kept_bytes": kept_bytes}
    if label is None:
        return TarFiles(names, samples, found, kind=None, **options)
    kind, values = read_as(labels, found, classes, lambda index: f"{names[samples[index].file]}: {samples[index].key}")
    return TarFiles(names, samples, values, kind=kind, **options)


def _grouped(file: str, members: Sequence[Member]) -> Iterator[dict[str, Member]]:
    """The members of each sample by their extensions."""
    for key, group in groupby(members, key=attrgetter("key")):
        sample: dict[str, Member] = {}
        for member in group:
            if member.extension in sample:
                raise BadDataset(f"{file}: {key} has two members .{member.extension}")
            sample[member.extension] = member
        yield sample


def _sample(file: str, number: int, members: dict[str, Member], wanted: tuple[str, ...]) -> TarSample:
    pictures = [members[one] for one in wanted if one in members]
    first = next(iter(members.values()))
    if len(pictures) > 1:
        several = ", ".join(one.extension for one in pictures)
        raise BadDataset(f"{file}: {first.key} has several pictures ({several}); choose one by image=")
    if not pictures:
        return TarSample(number, first.key, first.offset, 0, f"no picture in the sample; it has {', '.join(members)}")
    return TarSample(number, first.key, pictures[0].offset, pictures[0].size)


def _label(file: str, members: dict[str, Member], extension: str | None, field: str | None, sample: TarSample) -> Any:
    """A sample's label as its member says it; None of one without a picture, which need not have any."""
    if extension is None:
        return NO_LABEL
    name = f"{file}: {sample.key}"
    member = members.get(extension)
    if member is None or member.content is None:
        if sample.problem:
            return None
        raise BadDataset(f"{name} has no .{extension}; it has {', '.join(members)}. label=None reads pictures alone")
    if not extension.endswith("json"):
        return member.content.strip()
    try:
        value = json.loads(member.content)
    except (ValueError, RecursionError) as error:
        raise BadDataset(f"{name}.{extension} is no JSON: {error}") from None
    if field is None:
        return value
    if not isinstance(value, dict) or field not in value:
        raise BadDataset(f"{name}.{extension} has no field {field!r}")
    return value[field]
