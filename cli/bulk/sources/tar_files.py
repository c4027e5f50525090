"""Images in tar files (WebDataset shards), in their order."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from onestream.cli.bulk.sources.samples import Sample, as_text, too_large, unreadable_sample
from onestream.client import UnreadableInput
from onestream.client.images import Pipe
from onestream.measure.image_files import ImageNames
from onestream.preprocess.storage import remote
from onestream.preprocess.storage.tar_headers import MOST_HEADER_BYTES, TarMember, members

_PIPE_SILENCE_S = 60.0
"""How long a tar file in a pipe may give nothing; it may come from another machine."""
_LONGEST_MAGIC = 5
_MOST_XZ_BYTES = 256 << 20
"""Of memory for unpacking xz, four times what ``xz -9`` needs: a file says itself how much it takes."""


def in_tar(name: str, names: ImageNames) -> Iterator[Sample]:
    """The images of a tar file; what cannot be read ends them as a sample that cannot be loaded."""
    try:
        with ExitStack() as stack:
            tar = _opened(name, stack)
            for member in members(tar):
                if isinstance(member, TarMember) and member.is_too_large:
                    reason = f"names or attributes of {member.size} bytes, allowed are at most {MOST_HEADER_BYTES}"
                    yield unreadable_sample(name, tarfile.ReadError(reason))
                elif member.isreg() and names.takes(member.name, folder=name):
                    yield _member(name, tar, member)
    except Exception as error:  # what tarfile and zlib raise for damaged files is not one family
        yield unreadable_sample(name, error)


def _opened(name: str, stack: ExitStack) -> tarfile.TarFile:
    if remote.is_address(name):
        return _streamed(remote.open_stream(name, in_small_pieces=True), stack)
    if not stat.S_ISREG(os.stat(name).st_mode):
        return _streamed(Pipe(name, silence_s=_PIPE_SILENCE_S), stack)
    try:
        # Of a file that is not compressed, what is not wanted can be passed over unread.
        return stack.enter_context(tarfile.open(name, "r:", tarinfo=TarMember))
    except tarfile.ReadError:
        return _streamed(io.FileIO(name), stack)


class _Xz:
    """What is packed by xz or lzma. ``lzma.LZMAFile`` takes all the memory that a file asks for."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file, self._decoder = file, lzma.LZMADecompressor(memlimit=_MOST_XZ_BYTES)

    def read1(self, size: int) -> bytes:
        """At most ``size`` bytes; none at the end. Raises EOFError where the file ends before."""
        while not self._decoder.eof:
            packed = self._file.read1() if self._decoder.needs_input else b""
            if self._decoder.needs_input and not packed:
                raise EOFError("the compressed file ends before its end is marked")
            if unpacked := self._decoder.decompress(packed, size):
                return unpacked
        return b""


_UNPACKED_BY: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": _Xz,
    b"\x5d\x00\x00\x80": _Xz,
}
"""What unpacks a file, by the bytes that it begins with."""


def _streamed(raw: Any, stack: ExitStack) -> tarfile.TarFile:
    """A tar file that is read once, from its beginning to its end, compressed or not."""
    file = stack.enter_context(io.BufferedReader(raw))
    head = file.peek(_LONGEST_MAGIC)
    unpack = next((unpack for magic, unpack in _UNPACKED_BY.items() if head.startswith(magic)), None)
    pieces: Any = _Pieces(file if unpack is None else unpack(file))
    return stack.enter_context(tarfile.open(fileobj=pieces, mode="r|", tarinfo=TarMember))


class _Pieces:
    """A file in pieces as large as they are asked for, or smaller.

    ``tarfile`` itself would unpack at once whatever the next kilobytes grow to, which may be gigabytes.
    """

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes, those that are there before an error."""
        data: bytes = self._file.read1(size)
        return data


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
