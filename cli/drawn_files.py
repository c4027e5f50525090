"""Pictures with what was found in them drawn on, as files of a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from onestream.client import Item, Result, UnreadableInput

_JPEG_QUALITY = 92


class CannotDraw(Exception):
    """No picture can be drawn on: the pipeline finds nothing in pictures, or the folder cannot be written."""


class DrawnFiles:
    """Writes pictures to a folder, under their names below the folder that holds them all."""

    def __init__(self, folder: Path, images: Sequence[Path]) -> None:
        """Raises ValueError where a drawn picture would take the place of one of ``images``."""
        self._folder = folder
        absolute = [os.path.abspath(image) for image in images]
        self._root = os.path.commonpath([os.path.dirname(image) for image in absolute])
        sources = {os.path.realpath(image) for image in absolute}
        for image in images:
            if os.path.realpath(self.file_of(image)) in sources:
                raise ValueError(f"--draw {folder} would write over {self.file_of(image)}; choose another folder")

    def file_of(self, image: Path) -> Path:
        """Where the picture is drawn to: a file of the image's own format where Pillow writes that, else a PNG."""
        file = self._folder / os.path.relpath(os.path.abspath(image), self._root)
        known = Image.registered_extensions().get(file.suffix.lower()) in Image.SAVE
        return file if known else file.with_name(file.name + ".png")

    def write(self, item: Item[Result]) -> Item[Result]:
        """Draw one result, an image's path as its source; the item again, with an error where it cannot be drawn.

        Raises CannotDraw where no other could be, either.
        """
        if item.result is None:
            return item
        if item.result.drawn_size is None:
            raise CannotDraw(
                f"--draw draws objects, masks or the text of a picture, and {item.result.model!r} finds none"
            )
        source = Path(str(item.source))
        try:
            with Image.open(source) as image:
                drawn = item.result.draw(image)
        except Exception as error:  # what Pillow raises for damaged files is not one family
            return Item(
                item.index, item.source, error=UnreadableInput(f"cannot be drawn on: {error}", name=str(source))
            )
        file = self.file_of(source)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            drawn.save(file, quality=_JPEG_QUALITY)
        except OSError as error:
            raise CannotDraw(f"{file} cannot be written: {error.strerror or error}") from None
        return item
