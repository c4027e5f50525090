"""Pictures as a ``Processor`` takes them, files or pixels: their size without decoding them, and their pixels."""

from __future__ import annotations

from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from onestream.preprocess.backends.base import ON_CPU, Compiled, FromPicture
from onestream.preprocess.compile import compile, compile_from_picture
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage
from onestream.preprocess.geometry import Size
from onestream.preprocess.headers.reader import Checked, Encoded
from onestream.preprocess.limits import Limits, admit

Pixels = npt.NDArray[np.uint8]
Picture = Encoded | Pixels
"""The bytes of an image file, or the pixels of a picture: uint8 (height, width, 3), RGB."""


def is_decoded(picture: Any) -> TypeGuard[Pixels]:
    """Whether it is pixels, and not a file, which may be in an array of bytes."""
    return isinstance(picture, np.ndarray) and picture.ndim == 3


def checked(picture: Picture, definition: Definition, limits: Limits) -> tuple[Picture, Size]:
    """A picture, a file with its header, and its size upright. Raises ``BadImage``."""
    if is_decoded(picture):
        if picture.dtype != np.uint8 or picture.shape[2] != 3:
            raise BadImage(
                "unsupported_format",
                f"got a picture of {picture.dtype}{picture.shape}, expected uint8 (height, width, 3) RGB",
            )
        return picture, check_size((picture.shape[0], picture.shape[1]), limits)
    header = admit(picture, definition, limits)
    return picture if isinstance(picture, Checked) else Checked(picture, header), header.oriented_hw


def check_size(size_hw: Size, limits: Limits) -> Size:
    """The size. Raises ``BadImage`` where it is none, or breaks a limit."""
    if min(size_hw) < 1:
        raise BadImage("corrupt", f"got a picture of {size_hw[1]}x{size_hw[0]} pixels")
    limits.check_size(*size_hw)
    return size_hw


@lru_cache(64)
def from_picture(definition: Definition, limits: Limits) -> FromPicture:
    """What follows a definition's ``decode``, executed on pixels. Threads may share it."""
    return compile_from_picture(definition, backend=ON_CPU, limits=limits)


class Decoders:
    """Executes a definition on files, on as many threads as call it."""

    def __init__(self, definition: Definition, limits: Limits) -> None:
        self._definition, self._limits = definition, limits
        # One is for one thread at a time: as many are made as work at once.
        self._idle: SimpleQueue[Compiled] = SimpleQueue()

    def run(self, picture: Encoded) -> Pixels | BadImage:
        """The definition's pixels of one picture, or why it has none."""
        try:
            backend = self._idle.get_nowait()
        except Empty:
            backend = compile(self._definition, backend=ON_CPU, limits=self._limits, max_batch_size=1)
        try:
            return backend.run([picture])[0]
        finally:
            self._idle.put(backend)

    def close(self) -> None:
        """Release what they hold."""
        while not self._idle.empty():
            self._idle.get().close()
