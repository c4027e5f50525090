"""Where images come from: files, folders, tar files and lists of these, one after the other and never all at once."""

from __future__ import annotations

import glob
import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from onestream.cli.bulk.braces import expand_braces
from onestream.client import BadImage, UnreadableInput
from onestream.measure.image_files import IMAGE_SUFFIXES

_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
TAR_SUFFIXES = (".tar", *_COMPRESSED)
"""Endings of files that are read as tar files, in lower or upper case."""

_NAMES_AT_ONCE = 200_000


@dataclass(frozen=True, slots=True)
class Sample:
    """One image to be: ``path`` of its file or of the tar file that holds it, and its ``key`` there, else empty.

    ``load(max_bytes)`` gives the path or the bytes to send. It is to be called before the next sample is asked for;
    raises BadImage or UnreadableInput.
    """

    path: str
    key: str
    load: Callable[[int], str | bytes]


def samples(arguments: Iterable[str], listed: Iterable[str] = ()) -> Iterator[Sample]:
    """Every image that the arguments stand for, always in the same order.

    An argument is a file, a folder (the images in it and below, sorted by name), a tar file (its images in their
    order), a pattern with ``*`` or ``{0..9}`` of these, or ``-`` for ``listed``, where each line is one of the first
    three. What cannot be read becomes a sample that cannot be loaded.
    """
    for argument in arguments:
        if argument == "-":
            for line in listed:
                if name := line.rstrip("\r\n"):
                    yield from _samples_of(name)
        else:
            for name in _expand(argument):
                yield from _samples_of(name)


def is_countable(arguments: Iterable[str]) -> bool:
    """Whether the samples can be counted beforehand without reading all of their bytes."""
    return not any(argument == "-" or argument.lower().endswith(_COMPRESSED) for argument in arguments)


def as_text(name: str) -> str:
    """A name that can be written as UTF-8: bytes of other encodings appear as ``\\udcXX``."""
    return name.encode("utf-8", "backslashreplace").decode()


def _expand(argument: str) -> Iterator[str]:
    if os.path.lexists(argument):
        yield argument
        return
    for name in expand_braces(argument):
        # As the shell does: a pattern that matches nothing stays as it is, and is reported as missing.
        matches = [] if os.path.lexists(name) else sorted(glob.glob(name, recursive=True))
        yield from matches or [name]


def _samples_of(name: str) -> Iterator[Sample]:
    if os.path.isdir(name):
        yield from _in_folder(name)
    elif name.lower().endswith(TAR_SUFFIXES):
        yield from _in_tar(name)
    else:
        yield _file(name)


def _file(name: str) -> Sample:
    return Sample(as_text(name), "", lambda _max_bytes: name)


def _unreadable(name: str, error: Exception) -> Sample:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__

    def load(_max_bytes: int) -> bytes:
        raise UnreadableInput(f"cannot read {as_text(name)!r}: {as_text(reason)}")

    return Sample(as_text(name), "", load)


def _in_folder(folder: str) -> Iterator[Sample]:
    """The images in a folder and below; links to folders are not followed, since they may lead in circles."""
    try:
        for name, is_folder in _sorted_names(folder):
            path = os.path.join(folder, name)
            if is_folder:
                yield from _in_folder(path)
            else:
                yield _file(path)
    except OSError as error:
        yield _unreadable(folder, error)


def _is_image(name: str) -> bool:
    # Not by pathlib, which in Python 3.12 keeps every part of a path for ever.
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def _sorted_names(folder: str) -> Iterator[tuple[str, bool]]:
    """Folders and images in a folder, sorted, and whether each is a folder.

    Each pass over the folder takes the next block of names, so memory is bounded however many there are.
    """
    last = ""
    while True:
        block: list[tuple[str, bool]] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name <= last:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    block.append((entry.name, True))
                elif _is_image(entry.name) and entry.is_file():
                    block.append((entry.name, False))
                if len(block) == 2 * _NAMES_AT_ONCE:
                    block.sort()
                    del block[_NAMES_AT_ONCE:]
        block.sort()
        yield from block[:_NAMES_AT_ONCE]
        if len(block) < _NAMES_AT_ONCE:
            return
        last = block[_NAMES_AT_ONCE - 1][0]


class _Member(tarfile.TarInfo):
    """A header of a tar file. ``tarfile`` takes a damaged one for the end of the file, and nobody would notice."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> _Member:
        """The next header. Raises ReadError where neither a header nor the mark of the end follows."""
        try:
            member = super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # what next() takes for the end
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"cut or damaged after byte {tar.offset} ({error})") from None
        if member.size < 0:
            # It would lead back to where the file was read already, for ever.
            raise tarfile.ReadError(f"damaged before byte {tar.offset} (a size below 0)")
        return member


def _in_tar(name: str) -> Iterator[Sample]:
    try:
        with _open_tar(name) as tar:
            while (member := tar.next()) is not None:
                # It would keep every member of the file.
                tar.members.clear()  # type: ignore[attr-defined]
                if member.isreg() and _is_image(member.name):
                    yield _member(name, tar, member)
    except Exception as error:  # what tarfile and zlib raise for damaged files is not one family
        yield _unreadable(name, error)


def _open_tar(name: str) -> tarfile.TarFile:
    if stat.S_ISREG(os.stat(name).st_mode):
        try:
            # Of a file that is not compressed, what is not wanted can be passed over unread.
            return tarfile.open(name, "r:", tarinfo=_Member)
        except tarfile.ReadError:
            pass
    return tarfile.open(name, "r|*", tarinfo=_Member)


def _member(name: str, tar: tarfile.TarFile, member: tarfile.TarInfo) -> Sample:
    def load(max_bytes: int) -> bytes:
        if member.size > max_bytes:
            raise BadImage("too_large", f"{member.size} bytes, allowed are at most {max_bytes}")
        what = f"{as_text(member.name)!r} in {as_text(name)!r}"
        try:
            file = tar.extractfile(member)
            data = b"" if file is None else file.read()
        except Exception as error:  # as above
            raise UnreadableInput(f"cannot read {what}: {error or type(error).__name__}") from None
        if len(data) != member.size:
            raise UnreadableInput(f"cannot read {what}: {len(data)} of {member.size} bytes")
        return data

    return Sample(as_text(name), as_text(os.path.splitext(member.name)[0].removeprefix("./")), load)
