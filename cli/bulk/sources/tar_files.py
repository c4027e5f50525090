"""Images in tar files (WebDataset shards), in their order."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack

from onestream.cli.bulk.sources import remote
from onestream.cli.bulk.sources.samples import Sample, as_text, too_large, unreadable_sample
from onestream.client import UnreadableInput
from onestream.measure.image_files import ImageNames

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
TAR_SUFFIXES = (".tar", *COMPRESSED)
"""Endings of files that are read as tar files, in lower or upper case."""


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


def in_tar(name: str, names: ImageNames) -> Iterator[Sample]:
    """The images of a tar file; what cannot be read ends them as a sample that cannot be loaded."""
    try:
        with ExitStack() as stack:
            tar = _opened(name, stack)
            while (member := tar.next()) is not None:
                # It would keep every member of the file.
                tar.members.clear()  # type: ignore[attr-defined]
                if member.isreg() and names.takes(member.name, folder=name):
                    yield _member(name, tar, member)
    except Exception as error:  # what tarfile and zlib raise for damaged files is not one family
        yield unreadable_sample(name, error)


def _opened(name: str, stack: ExitStack) -> tarfile.TarFile:
    if remote.is_address(name):
        file = stack.enter_context(remote.open_stream(name, in_small_pieces=True))
        return stack.enter_context(tarfile.open(fileobj=file, mode="r|*", tarinfo=_Member))
    if stat.S_ISREG(os.stat(name).st_mode):
        try:
            # Of a file that is not compressed, what is not wanted can be passed over unread.
            return stack.enter_context(tarfile.open(name, "r:", tarinfo=_Member))
        except tarfile.ReadError:
            pass
    return stack.enter_context(tarfile.open(name, "r|*", tarinfo=_Member))


def _member(name: str, tar: tarfile.TarFile, member: tarfile.TarInfo) -> Sample:
    def load(max_bytes: int) -> bytes:
        if member.size > max_bytes:
            raise too_large(member.size, max_bytes)
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
