"""What arguments stand for: files and files that hold many, one after the other and never all at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from onestream.cli.bulk.sources.parquet_files import count_rows, in_parquet
from onestream.cli.bulk.sources.samples import Sample, file_sample, unreadable_sample
from onestream.cli.bulk.sources.tar_files import in_tar
from onestream.measure.image_files import IMAGE_SUFFIXES, ImageNames, images_below, matching
from onestream.preprocess.storage import remote
from onestream.preprocess.storage.files import expand_braces
from onestream.preprocess.storage.parquet import PARQUET_SUFFIXES
from onestream.preprocess.storage.tar_headers import COMPRESSED, TAR_SUFFIXES


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of the sources that another process can be given: an image's file, or a file that holds many.

    ``holds_many`` says that it is a tar or a Parquet file. ``error`` is why the system does not let a folder be listed.
    """

    name: str
    holds_many: bool = False
    error: OSError | None = None

    @classmethod
    def named(cls, name: str) -> Unit:
        """What is named itself, and so read by its ending; what is found in a folder is an image."""
        return cls(name, holds_many=_file_name(name).endswith((*TAR_SUFFIXES, *PARQUET_SUFFIXES)))


def units(arguments: Iterable[str], listed: Iterable[str] = (), *, names: ImageNames | None = None) -> Iterator[Unit]:
    """Every piece that the arguments stand for, always in the same order.

    An argument is a file, a folder (the images in it and below, sorted by name), a tar or Parquet file, a pattern with
    ``*`` or ``{0..9}`` of these, or ``-`` for ``listed``, where each line is one of the first three. ``names`` tells
    which files of folders are images. A name may be an address such as ``s3://bucket/photos``.
    """
    names = names or ImageNames()
    for argument in arguments:
        if argument == "-":
            for line in listed:
                if name := line.rstrip("\r\n"):
                    yield from _units_of(name, names)
        else:
            yield from _units_of_argument(argument, names)


def samples(
    arguments: Iterable[str],
    listed: Iterable[str] = (),
    *,
    names: ImageNames | None = None,
    column: str | None = None,
) -> Iterator[Sample]:
    """Every image of the ``units``, always in the same order; what cannot be read is a sample that cannot be loaded.

    ``names`` tells which files of folders and tar files are images, ``column`` is that of Parquet files.
    """
    names = names or ImageNames()
    for unit in units(arguments, listed, names=names):
        yield from samples_of(unit, names, column)


def samples_of(unit: Unit, names: ImageNames, column: str | None = None) -> Iterator[Sample]:
    """The images of one unit, as ``samples`` gives them."""
    if unit.error is not None:
        yield unreadable_sample(unit.name, unit.error)
    elif not unit.holds_many:
        yield file_sample(unit.name)
    elif _file_name(unit.name).endswith(PARQUET_SUFFIXES):
        yield from in_parquet(unit.name, column)
    else:
        yield from in_tar(unit.name, names)


def _units_of_argument(argument: str, names: ImageNames) -> Iterator[Unit]:
    argument = remote.local_path(argument)
    if not remote.is_address(argument):
        for name in _matching_paths(argument):
            yield from _units_of(name, names)
        return
    for name in expand_braces(argument):
        if matches := _matching_entries(name):
            yield from map(_unit_of_entry, matches)
        else:
            # As the shell does: a pattern that matches nothing stays as it is, and is reported as missing.
            yield from _units_of(name, names)


def _matching_paths(argument: str) -> Iterator[str]:
    if os.path.lexists(argument):
        yield argument
        return
    for name in expand_braces(argument):
        yield from ([] if os.path.lexists(name) else matching(name)) or [name]


def _matching_entries(name: str) -> list[remote.Entry]:
    if "*" not in remote.without_options(name):
        return []
    try:
        return remote.matches(name)
    except OSError:
        return []


def _unit_of_entry(entry: remote.Entry) -> Unit:
    return Unit.named(entry.address) if entry.error is None else Unit(entry.address, error=entry.error)


def _units_of(name: str, names: ImageNames) -> Iterator[Unit]:
    name = remote.local_path(name)
    if remote.is_address(name):
        yield from _units_behind(name, names)
    elif os.path.isdir(name):
        for path, error in images_below(name, names):
            yield Unit(path, error=error)
    else:
        yield Unit.named(name)


def _units_behind(address: str, names: ImageNames) -> Iterator[Unit]:
    """A file behind an address, or the images in a folder there and below. What is called like an image is a file."""
    unit = Unit.named(address)
    # To ask the store about each address of a long list would take hours.
    if unit.holds_many or os.path.splitext(_file_name(address))[1] in IMAGE_SUFFIXES:
        yield unit
        return
    try:
        if not remote.is_folder(address):
            yield unit
            return
    except OSError as error:
        yield Unit(address, error=error)
        return
    yield from _units_in(address, names)


def _units_in(folder: str, names: ImageNames) -> Iterator[Unit]:
    """The images in a folder behind an address and below."""
    below: list[tuple[str, Iterator[remote.Entry]]] = [(folder, _entries(folder))]
    while below:
        at, entries = below[-1]
        try:
            entry = next(entries, None)
        except OSError as error:
            below.pop()
            yield Unit(at, error=error)
            continue
        if entry is None:
            below.pop()
        elif entry.is_folder and entry.error is None:
            below.append((entry.address, _entries(entry.address)))
        elif entry.is_folder or names.takes(entry.name, folder=remote.without_options(at)):
            yield Unit(entry.address, error=entry.error)


def _entries(folder: str) -> Iterator[remote.Entry]:
    """What is in a folder behind an address, which is asked for with the first."""
    yield from remote.entries(folder)


def counter(arguments: Sequence[str], *, every_file: bool) -> Callable[[], int] | None:
    """What counts the samples; None where that would read all of their bytes, or a list that is read once."""
    if any(_must_be_read(argument) for argument in arguments):
        return None

    def count() -> int:
        names = ImageNames(every_file=every_file)
        return sum(_count(unit, names) for unit in units(arguments, names=names))

    return count


def _must_be_read(argument: str) -> bool:
    name = _file_name(argument)
    if os.path.exists(argument) and not (os.path.isdir(argument) or os.path.isfile(argument)):
        # What one reader takes out of a pipe is gone for others.
        return True
    return argument == "-" or name.endswith(COMPRESSED) or (remote.is_address(argument) and name.endswith(TAR_SUFFIXES))


def _count(unit: Unit, names: ImageNames) -> int:
    if unit.holds_many and _file_name(unit.name).endswith(PARQUET_SUFFIXES):
        return count_rows(unit.name)
    return sum(1 for _ in samples_of(unit, names))


def _file_name(name: str) -> str:
    """In lower case, without what an address says of how it is opened."""
    return (remote.without_options(name) if remote.is_address(name) else name).lower()
