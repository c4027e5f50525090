"""Picture files with masks: PNG files of the picture's size, whose levels are classes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onestream.preprocess.backends.reference import decode_levels
from onestream.preprocess.errors import BadDataset, BadImage, BadSample
from onestream.preprocess.geometry import Size
from onestream.preprocess.headers.reader import Encoded, byte_view, read_header
from onestream.preprocess.limits import Limits
from onestream.preprocess.training.sources.annotations import ListedFiles, read_bounded
from onestream.preprocess.training.sources.samples import SUFFIXES, image_files

IGNORE = 255
"""The class of a pixel of which none is known: a loss leaves it out (``ignore_index`` of cross entropy)."""
MAX_BYTES = 64 * 1024**2
"""Of one mask; as PNG stores it where nothing can be compressed, one of 25 million pixels has 25 MB."""
_MAX_CLASSES = 255
_PEEKED = 16
"""Masks that are looked at when a dataset is opened."""

_BITS_AT, _COLOR_AT = 24, 25
_GRAY, _PALETTE = 0, 3
_COLORS = {_GRAY: "gray", 2: "RGB", _PALETTE: "a palette", 4: "gray with alpha", 6: "RGB with alpha"}

Mask = npt.NDArray[np.uint8]
"""Classes, (height, width); ``IGNORE`` where none is known."""


@dataclass(frozen=True, slots=True)
class SegmentationSample:
    """One picture, and the file of its mask.

    ``problem`` says why it cannot be trained on; it is empty where it can.
    """

    path: Path
    mask: Path
    problem: str = ""


class SegmentationFiles(ListedFiles[SegmentationSample]):
    """Pictures with masks; see ``ListedFiles`` and ``read_masks``.

    ``classes`` are the names of the classes 0, 1, …, at most 255. ``levels`` says what class a level of a mask means,
    such as ``{0: 0, 255: 1}``; without it a level is the class itself. Level 255 means ``IGNORE`` where it says
    nothing else. Raises ``BadDataset``, also where some masks hold levels 0 and 255 only and ``levels`` is missing.
    """

    def __init__(
        self,
        samples: Sequence[SegmentationSample],
        classes: Sequence[str],
        *,
        levels: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__(samples, classes)
        count = len(self.classes)
        if not 1 <= count <= _MAX_CLASSES:
            raise BadDataset(f"got {count} classes; expected 1 to {_MAX_CLASSES}, since {IGNORE} means none")
        if levels is None:
            self._refuse_black_and_white()
        known = {IGNORE: IGNORE, **({one: one for one in range(count)} if levels is None else levels)}
        for level, meant in known.items():
            if not (0 <= level <= 255 and (0 <= meant < count or meant == IGNORE)):
                raise BadDataset(
                    f"levels has {level}: {meant}; expected a level of 0 to 255, and a class of 0 to {count - 1} or "
                    f"{IGNORE} for none"
                )
        self._known = np.isin(np.arange(256), list(known))
        self._classes_of = np.array([known.get(level, IGNORE) for level in range(256)], np.uint8)

    def mask(self, index: int, size_hw: Size) -> Mask:
        """The mask of a picture that has ``size_hw`` upright. Raises ``BadSample`` where there is none for that size.

        An EXIF orientation of its own is applied.
        """
        path = self.samples[index].mask
        try:
            levels = _levels(read_bounded(path, MAX_BYTES), size_hw=size_hw)
        except (BadSample, BadImage) as error:
            raise BadSample(f"the mask {path}: {error}") from None
        known = self._known.take(levels)
        if not known.all():
            allowed = ", ".join(str(level) for level in np.flatnonzero(self._known))
            raise BadSample(f"the mask {path}: got the level {levels[~known][0]}; allowed: {allowed}")
        return self._classes_of.take(levels)

    def _refuse_black_and_white(self) -> None:
        """Masks of 0 and 255 are usually meant as two classes, of which the second would be ignored without a word."""
        seen: set[int] = set()
        for sample in self.samples[:: max(1, len(self.samples) // _PEEKED)][:_PEEKED]:
            with suppress(BadSample, BadImage):  # which is told when the sample is read
                seen.update(np.unique(_levels(read_bounded(sample.mask, MAX_BYTES))).tolist())
            if not seen <= {0, IGNORE}:
                return
        if IGNORE in seen:
            raise BadDataset(
                f"the masks hold the levels {' and '.join(map(str, sorted(seen)))} only, and {IGNORE} is ignored; "
                "say what they mean: levels={0: 0, 255: 1} for two classes"
            )


def read_masks(
    images: str | os.PathLike[str],
    *,
    classes: Sequence[str],
    masks: str | os.PathLike[str] | None = None,
    suffix: str = ".png",
    levels: Mapping[int, int] | None = None,
) -> SegmentationFiles:
    """Read a folder of pictures, and those below it, with a mask for each.

    The mask of ``a/b.jpg`` in ``images`` is ``a/b.png`` in the folder ``masks``; None is ``images`` itself. ``suffix``
    is how the names of masks end in place of the pictures' suffixes, such as ``_mask.png``. What lies in ``masks`` and
    ends so is no picture, where that folder is ``images`` or in it. ``classes`` and ``levels`` are as of
    ``SegmentationFiles``.

    Raises ``BadDataset`` where a folder is missing or no picture is there. A picture without a mask keeps its
    ``problem``.
    """
    folder, beside = Path(images), Path(images if masks is None else masks)
    for needed in (folder, beside):
        if not needed.is_dir():
            raise BadDataset(f"{needed} is not a folder")
    place = beside.resolve()
    is_within = place.is_relative_to(folder.resolve())
    paths = [
        path
        for path in image_files(folder)
        if not (is_within and path.name.endswith(suffix) and path.resolve().is_relative_to(place))
    ]
    if not paths:
        raise BadDataset(
            f"no picture in {folder}; expected files that end in {', '.join(SUFFIXES)}, beside masks that end in "
            f"{suffix}"
        )
    return SegmentationFiles([_sample(path, folder, beside, suffix) for path in paths], classes, levels=levels)


def _sample(path: Path, folder: Path, masks: Path, suffix: str) -> SegmentationSample:
    mask = masks / path.relative_to(folder).with_name(path.stem + suffix)
    return SegmentationSample(path, mask, "" if mask.is_file() else f"there is no mask {mask}")


def _levels(data: Encoded, *, size_hw: Size | None = None) -> Mask:
    """The levels of a mask's file, of the upright size of its picture. Raises ``BadSample`` and ``BadImage``."""
    header = read_header(data) if size_hw else Limits().check(data)
    if header.format != "PNG":
        raise BadSample(f"got {header.format}; expected PNG, which keeps every level")
    bits, color = byte_view(data)[_BITS_AT], byte_view(data)[_COLOR_AT]
    # Fewer bits of gray are stretched to 255 by whoever decodes them.
    if color != _PALETTE and (color != _GRAY or bits != 8):
        raise BadSample(f"got {_COLORS[color]} of {bits} bit; expected 8-bit gray, or a palette whose indices count")
    if size_hw is not None and header.oriented_hw != size_hw:
        height, width = header.oriented_hw
        raise BadSample(
            f"it has {width}x{height} pixels; its picture has {size_hw[1]}x{size_hw[0]} after its EXIF orientation"
        )
    return decode_levels(data, header)
