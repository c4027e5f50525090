"""Where the members of a tar file lie, so that each can be read by itself."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from onestream.preprocess.storage import remote
from onestream.preprocess.storage.files import Version, as_os_error
from onestream.preprocess.storage.kept import read_kept, write_kept
from onestream.preprocess.storage.tar_headers import MOST_HEADER_BYTES, TarMember, members

_VERSION = 1
MOST_LABEL_BYTES = 1 << 20
_EXTENSION = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_OF_TOOLS = re.compile(r"__[^/]*__($|/)")


class Member(NamedTuple):
    """A file in a tar file: the key of its sample, its extension in lower case, and where its bytes are.

    ``content`` are its bytes as text, surrogates for what is not UTF-8, where the index holds them.
    """

    key: str
    extension: str
    offset: int
    size: int
    content: str | None = None


def members_of(
    name: str, version: Version, *, contents_of: str | None = None, folder: Path | None = None
) -> list[Member]:
    """The files in a tar file, at a path or an address, in their order; of those with an extension also what they hold.

    The key is the path up to the first dot of its last part and the extension all after that, as WebDataset has them; a
    file without a dot is passed over. What is found is kept in ``folder``, for the ``version`` of the tar file,
    unless the store does not say when that was changed. One behind an address is read from its beginning to its end.
    Raises OSError, which says what is wrong.
    """
    about = hashlib.sha256(json.dumps([_VERSION, name, *version, contents_of]).encode()).hexdigest()[:32]
    path = None if folder is None or version[1] is None else folder / f"{about}.json"
    if path is not None and (kept := read_kept(path)) is not None:
        return [Member(*one) for one in json.loads(kept)]
    found = list(_scanned(name, version[0], contents_of))
    if path is not None:
        try:
            write_kept(path, json.dumps(found).encode())
        except OSError as error:
            raise OSError(f"its index cannot be kept in {folder}: {error.strerror or error}") from None
    return found


def _scanned(name: str, size: int, contents_of: str | None) -> Iterator[Member]:
    try:
        with ExitStack() as stack:
            try:
                tar = _opened(name, stack)
            except tarfile.ReadError as error:
                raise OSError(f"{error}; one that is compressed must be unpacked first") from None
            for member in members(tar):
                if isinstance(member, TarMember) and member.is_too_large:
                    raise tarfile.ReadError(f"a header of more than {MOST_HEADER_BYTES} bytes")
                parts = _EXTENSION.fullmatch(member.name)
                if not member.isreg() or parts is None or _OF_TOOLS.match(member.name):
                    continue
                if member.issparse():
                    raise tarfile.ReadError(f"{member.name} is sparse, so that its bytes do not lie together")
                if member.offset_data + member.size > size:
                    raise tarfile.ReadError(f"{member.name} is cut: it ends after the end of the file")
                key, extension = parts.group(1), parts.group(2).lower()
                content = None
                if extension == contents_of:
                    content = _content(tar, member)
                yield Member(key, extension, member.offset_data, member.size, content)
    except Exception as error:  # what tarfile and stores raise is not one family
        raise as_os_error(error) from None


def _opened(name: str, stack: ExitStack) -> tarfile.TarFile:
    """The tar file, of which members are passed over unread on this machine."""
    if not remote.is_address(name):
        return stack.enter_context(tarfile.open(name, "r:", tarinfo=TarMember))
    # Headers lie between the pictures: to ask for each would take longer than to read them all.
    stream = stack.enter_context(remote.open_stream(name, in_small_pieces=True))
    return stack.enter_context(tarfile.open(fileobj=stream, mode="r|", tarinfo=TarMember))


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    if member.size > MOST_LABEL_BYTES:
        raise tarfile.ReadError(f"{member.name} has {member.size} bytes; a label has at most {MOST_LABEL_BYTES}")
    file = tar.extractfile(member)
    data = b"" if file is None else file.read()
    if len(data) != member.size:
        raise tarfile.ReadError(f"{member.name} is cut: it has {len(data)} of {member.size} bytes")
    return data.decode("utf-8", "surrogateescape")
