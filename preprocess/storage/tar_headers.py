"""Headers of tar files: of bounded size, and where one is damaged an error and no early end."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import Any

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
TAR_SUFFIXES = (".tar", *COMPRESSED)
"""Endings of files that are read as tar files, in lower or upper case."""
MOST_HEADER_BYTES = 1 << 20
"""Of what stands before a member: its long name and attributes, or where a sparse file has its data."""
_MOST_HEADERS = 16
_SIZED_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


class TarMember(tarfile.TarInfo):
    """A header of a tar file. ``tarfile`` takes a damaged one for the end of the file, without an error.

    ``is_too_large``: it declares more names or attributes than are read, so that it and they are passed over.
    """

    is_too_large = False

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> TarMember:
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

    def _proc_member(self, tar: tarfile.TarFile) -> TarMember:
        """What ``tarfile`` lets subclasses override: it reads headers whole, whatever size they declare."""
        if self.type in _SIZED_HEADERS and self.size > MOST_HEADER_BYTES:
            self.is_too_large = True
            self.offset_data = tar.fileobj.tell()
            tar.offset = self.offset_data + -(-self.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            return self
        file = tar.fileobj
        # Headers that follow each other are one in another, and so are their bounds.
        tar.fileobj = _HeaderBytes(file)  # type: ignore[assignment]  # it has what is asked of it here
        try:
            return super()._proc_member(tar)  # type: ignore[misc, no-any-return]
        finally:
            tar.fileobj = file


def members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members of a tar file that was opened with ``TarMember``, none of which is kept.

    Raises ReadError for a damaged one, and for global headers that are too large together.
    """
    while (member := tar.next()) is not None:
        # It would keep every member of the file.
        tar.members.clear()  # type: ignore[attr-defined]
        if sum(map(len, (*tar.pax_headers, *tar.pax_headers.values()))) > MOST_HEADER_BYTES:
            raise tarfile.ReadError(f"global headers of more than {MOST_HEADER_BYTES} bytes")
        yield member


class _HeaderBytes:
    """A tar file of which at most ``MOST_HEADER_BYTES`` are read, for a header within at most 16 others."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, MOST_HEADER_BYTES
        self._depth: int = file._depth + 1 if isinstance(file, _HeaderBytes) else 0
        if self._depth > _MOST_HEADERS:
            raise tarfile.ReadError(f"more than {_MOST_HEADERS} headers of one member")

    def read(self, size: int) -> bytes:
        """The next bytes. Raises ReadError where they would be too many."""
        self._left -= size
        # A size below 0 would mean the whole file.
        if size < 0 or self._left < 0:
            raise tarfile.ReadError(f"a header of more than {MOST_HEADER_BYTES} bytes")
        data: bytes = self._file.read(size)
        return data

    def tell(self) -> int:
        """Where the file is."""
        return int(self._file.tell())
