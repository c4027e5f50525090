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
from onestream.client.images import unreadable
from onestream.measure.image_files import ImageNames, images_below

_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
TAR_SUFFIXES = (".tar", *_COMPRESSED)
"""Endings of files that are read as tar files, in lower or upper case."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One image to be: ``path`` of its file or of the tar file that holds it, and its ``key`` there, else empty.

    ``load(max_bytes)`` gives the path or the bytes to send. It is to be called before the next sample is asked for;
    raises BadImage or UnreadableInput.
    """

    path: str
    key: str
    load: Callable[[int], str | bytes]


def samples(
    arguments: Iterable[str], listed: Iterable[str] = (), *, names: ImageNames | None = None
) -> Iterator[Sample]:
    """Every image that the arguments stand for, always in the same order.

    An argument is a file, a folder (the images in it and below, sorted by name), a tar file (its images in their
    order), a pattern with ``*`` or ``{0..9}`` of these, or ``-`` for ``listed``, where each line is one of the first
    three. ``names`` tells which files of folders and tar files are images. What cannot be read becomes a sample that
    cannot be loaded.
    """
    names = names or ImageNames()
    for argument in arguments:
        if argument == "-":
            for line in listed:
                if name := line.rstrip("\r\n"):
                    yield from _samples_of(name, names)
        else:
            for name in _expand(argument):
                yield from _samples_of(name, names)


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


def _samples_of(name: str, names: ImageNames) -> Iterator[Sample]:
    if os.path.isdir(name):
        for path, error in images_below(name, names):
            yield _file(path) if error is None else _unreadable(path, error)
    elif name.lower().endswith(TAR_SUFFIXES):
        yield from _in_tar(name, names)
    else:
        yield _file(name)


def _file(name: str) -> Sample:
    return Sample(as_text(name), "", lambda _max_bytes: name)


def _unreadable(name: str, error: Exception) -> Sample:
    def load(_max_bytes: int) -> bytes:
        raise unreadable(as_text(name), error)

    return Sample(as_text(name), "", load)


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


def _in_tar(name: str, names: ImageNames) -> Iterator[Sample]:
    try:
        with _open_tar(name) as tar:
            while (member := tar.next()) is not None:
                # It would keep every member of the file.
                tar.members.clear()  # type: ignore[attr-defined]
                if member.isreg() and names.takes(member.name, folder=name):
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
        what = f"{as_text(name)}: {as_text(member.name)}"
        try:
            file = tar.extractfile(member)
            data = b"" if file is None else file.read()
        except Exception as error:  # as above
            raise UnreadableInput(f"cannot be read: {error or type(error).__name__}", name=what) from None
        if len(data) != member.size:
            raise UnreadableInput(f"cannot be read: {len(data)} of {member.size} bytes", name=what)
        return data

    return Sample(as_text(name), as_text(os.path.splitext(member.name)[0].removeprefix("./")), load)
