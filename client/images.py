"""Makes the bytes of one encoded image file from a path, bytes, an array or a PIL image.

Encoded images (bytes, paths, files) travel as they are: the server decodes them. Pixels (NumPy arrays, PIL
images) are encoded without loss, as BMP where they fit into the size limit: writing a BMP of 1920×1080 takes
about 3 ms and decoding it 14 ms, the fastest PNG takes 180 ms and 58 ms and is only 40 % smaller. So BMP wins
on any network faster than about 150 Mbit/s, and spares the server, whose time is the scarce one. What is too
large as a BMP, or would lose something in it, becomes a PNG with the fastest compression.
"""

from __future__ import annotations

import errno
import io
import os
import re
import select
import stat
import struct
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from onestream.client.errors import BadImage, UnreadableInput, UnsupportedInput

if TYPE_CHECKING:
    from PIL.Image import Image

ImageInput: TypeAlias = (
    "bytes | bytearray | memoryview | str | os.PathLike[str] | BinaryIO | npt.NDArray[np.uint8] | Image"
)
"""What can be sent as an image; ``encode`` says how each is understood."""

PIPE_SILENCE_S = 10.0
"""How long a pipe may give nothing: a FIFO without a writer gives nothing at all."""

_ADDRESS = re.compile(r"https?:/", re.IGNORECASE)
_ORIENTATION_TAG = 0x0112
_PNG_MODES = ("L", "LA", "P", "RGB", "RGBA", "I;16", "I;16B")
_CONVERTED_MODES = {
    "1": "L",
    "CMYK": "RGB",
    "YCbCr": "RGB",
    "LAB": "RGB",
    "HSV": "RGB",
    "RGBX": "RGB",
    "La": "LA",
    "PA": "RGBA",
    "RGBa": "RGBA",
}
_EXPECTED = (
    "expected bytes, a path, a binary file object, a NumPy array (uint8, height × width × 3 in RGB order, or "
    "height × width) or a PIL image"
)

_HEADERS = struct.Struct("<2sI4xIIiiHHIIiiII")
_INFO_SIZE = 40
_GRAY_PALETTE = bytes(value for level in range(256) for value in (level, level, level, 0))


class EncodedImage(Protocol):
    """One encoded image file, not copied anywhere yet. Its methods may be called more than once."""

    @property
    def byte_size(self) -> int:
        """Length of the file, at least 1."""

    def to_bytes(self) -> bytes:
        """The whole file. Raises UnreadableInput."""

    def write_into(self, buffer: memoryview) -> None:
        """Put the file into ``buffer``, of length ``byte_size``, with no copy between. Raises UnreadableInput."""


def encode(image: ImageInput, *, max_body_bytes: int, max_pixels: int | None = None) -> EncodedImage:
    """Understand ``image`` and check its size, before anything large is read or sent.

    - bytes, bytearray, memoryview: an encoded file (JPEG, PNG, WebP, TIFF, BMP).
    - str, Path: the path of such a file.
    - binary file object: such a file from its current position to its end.
    - NumPy array: uint8 pixels, ``[height, width, 3]`` in RGB order, or ``[height, width]`` gray.
    - PIL image: its pixels, with its alpha, palette and EXIF orientation, so that the server's definition
      decides about them and ``Image.open(path)`` gives what ``path`` gives. An image that was turned upright by
      ``ImageOps.exif_transpose`` has no orientation any more and is not turned again.

    Raises UnsupportedInput for anything else, UnreadableInput for a file that cannot be read, and BadImage
    (``empty`` or ``too_large``) when there are no bytes or more than ``max_body_bytes``, or (``too_many_pixels``) when
    an array or a PIL image has more than ``max_pixels``; the server counts those of encoded images.
    """
    encoded = _encode(image, max_body_bytes, max_pixels)
    if encoded.byte_size == 0:
        raise BadImage("empty", "0 bytes, expected an encoded image")
    if encoded.byte_size > max_body_bytes:
        raise BadImage("too_large", f"{encoded.byte_size} bytes, allowed are at most {max_body_bytes}")
    return encoded


def _encode(image: Any, max_body_bytes: int, max_pixels: int | None) -> EncodedImage:
    if isinstance(image, bytes):
        return _InMemory(image)
    if isinstance(image, (bytearray, memoryview)):
        return _InMemory(bytes(image))
    if isinstance(image, (str, os.PathLike)):
        return _from_path(Path(image), max_body_bytes)
    if isinstance(image, np.ndarray):
        pixels = _checked_pixels(image)
        _check_count(pixels.shape[1], pixels.shape[0], max_pixels)
        return _from_pixels(pixels, max_body_bytes)
    pil = sys.modules.get("PIL.Image")
    if pil is not None and isinstance(image, pil.Image):
        _check_count(image.width, image.height, max_pixels)
        return _from_pil(image, max_body_bytes)
    if callable(getattr(image, "read", None)):
        return _from_file(image, max_body_bytes)
    raise UnsupportedInput(f"an image of type {type(image).__name__} was given; {_EXPECTED}")


class Pipe(io.FileIO):
    """A pipe or a device, opened for reading at once, whether anybody writes into it or not.

    Reading raises TimeoutError, with the seconds in its text, where nothing comes for ``silence_s``.
    """

    def __init__(self, path: str | os.PathLike[str], *, silence_s: float | None = None) -> None:
        """``silence_s`` is ``PIPE_SILENCE_S`` by default. Raises OSError."""
        # Else opening a FIFO waits for who writes it.
        super().__init__(os.fspath(path), opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
        self._silence_s = PIPE_SILENCE_S if silence_s is None else silence_s
        self._poll = select.poll()
        self._poll.register(self, select.POLLIN)

    def readinto(self, buffer: Any) -> int:
        """The next bytes; 0 at the end."""
        while self._poll.poll(1000 * self._silence_s):
            # Another reader may have been faster.
            if (count := super().readinto(buffer)) is not None:
                return count
        raise TimeoutError(errno.ETIMEDOUT, f"a pipe that gives nothing for {self._silence_s:g} s")


@dataclass(frozen=True, slots=True)
class _InMemory:
    data: bytes

    @property
    def byte_size(self) -> int:
        return len(self.data)

    def to_bytes(self) -> bytes:
        return self.data

    def write_into(self, buffer: memoryview) -> None:
        buffer[:] = self.data


@dataclass(frozen=True, slots=True)
class _InFile:
    """``byte_size`` bytes of the file that ``open_file`` hands out, from ``start`` on."""

    name: str
    start: int
    byte_size: int
    open_file: Callable[[], AbstractContextManager[Any]]

    def to_bytes(self) -> bytes:
        data = bytearray(self.byte_size)
        self.write_into(memoryview(data))
        return bytes(data)

    def write_into(self, buffer: memoryview) -> None:
        filled = 0
        try:
            with self.open_file() as file:
                file.seek(self.start)
                while filled < self.byte_size and (count := file.readinto(buffer[filled:])):
                    filled += count
        except OSError as error:
            raise unreadable(self.name, error) from None
        if filled < self.byte_size:
            raise UnreadableInput(f"shrank while it was read: {filled} of {self.byte_size} bytes", name=self.name)


def _from_path(path: Path, max_body_bytes: int) -> EncodedImage:
    try:
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            return _InFile(str(path), 0, status.st_size, lambda: path.open("rb", buffering=0))
        # A pipe or a device has no size; a directory fails here, with the system's own words.
        with io.BufferedReader(Pipe(path)) as file:
            return _InMemory(file.read(max_body_bytes + 1))
    except (OSError, ValueError) as error:
        raise unreadable(str(path), error) from None


def _from_file(file: Any, max_body_bytes: int) -> EncodedImage:
    name = str(getattr(file, "name", type(file).__name__))
    if isinstance(file, io.TextIOBase):
        raise UnsupportedInput(f"the file {name!r} is open as text; open it as binary, with mode 'rb'")
    try:
        if isinstance(file, (io.RawIOBase, io.BufferedIOBase)) and file.seekable() and hasattr(file, "readinto"):
            start = file.tell()
            size = file.seek(0, os.SEEK_END) - start
            return _InFile(name, start, max(size, 0), lambda: nullcontext(file))
        data = file.read(max_body_bytes + 1)
    except (OSError, ValueError) as error:
        raise unreadable(name, error) from None
    if not isinstance(data, bytes):
        raise UnsupportedInput(f"the file {name!r} gives {type(data).__name__}, expected bytes")
    return _InMemory(data)


def _checked_pixels(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    seen = f"an array of {array.dtype} {list(array.shape)} was given"
    if array.ndim == 1 and array.dtype == np.uint8:
        raise UnsupportedInput(f"{seen}; if it holds an encoded file, pass array.tobytes()")
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        raise UnsupportedInput(f"{seen}; if channels come first, pass array.transpose(1, 2, 0)")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3):
        raise UnsupportedInput(f"{seen}; expected uint8 [height, width, 3] in RGB order, or [height, width]")
    if array.size == 0:
        raise BadImage("empty", f"{seen}, which holds no pixels")
    return array


def _check_count(width: int, height: int, most: int | None) -> None:
    """Raise BadImage before the work of encoding, which takes seconds for a picture that the server would refuse."""
    if most is not None and width * height > most:
        raise BadImage("too_many_pixels", f"{width}x{height} = {width * height} pixels, allowed are at most {most}")


def _from_pixels(pixels: npt.NDArray[np.uint8], max_body_bytes: int) -> EncodedImage:
    bitmap = Bitmap(pixels)
    if bitmap.byte_size <= max_body_bytes:
        return bitmap
    from PIL import Image

    return _as_png(Image.fromarray(np.ascontiguousarray(pixels)), orientation=1)


def _from_pil(image: Image, max_body_bytes: int) -> EncodedImage:
    if 0 in image.size:
        raise BadImage("empty", f"a PIL image of {image.width} × {image.height} pixels holds none")
    if image.mode not in (*_PNG_MODES, *_CONVERTED_MODES):
        raise UnsupportedInput(
            f"a PIL image of mode {image.mode!r} was given, whose values have no range that an image file can "
            "hold; scale and convert it to 'L' or 'RGB'"
        )
    try:
        image.load()
        orientation = image.getexif().get(_ORIENTATION_TAG, 1)
    except (OSError, SyntaxError, ValueError) as error:
        raise unreadable(str(getattr(image, "filename", "") or "PIL image"), error) from None
    if image.mode in _CONVERTED_MODES:
        image = image.convert(_CONVERTED_MODES[image.mode])
    if image.mode in ("L", "RGB") and orientation == 1:
        return _from_pixels(np.asarray(image), max_body_bytes)
    return _as_png(image, orientation=orientation)


def _as_png(image: Image, *, orientation: int) -> EncodedImage:
    from PIL.Image import Exif

    exif = Exif()
    if orientation != 1:
        exif[_ORIENTATION_TAG] = orientation
    file = io.BytesIO()
    # Pixels travel as they are, so no colour profile that a decoder could apply.
    image.save(file, "PNG", compress_level=1, exif=exif, icc_profile=None)
    return _InMemory(file.getvalue())


def unreadable(name: str, error: Exception) -> UnreadableInput:
    """The error for a file that the system does not let be read."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        reason += " (a string is the path of a file; of an encoded image pass the bytes, b64decode(text) of base64)"
    # A path has lost one of the address's slashes.
    if _ADDRESS.match(name):
        reason += " (nothing is fetched from addresses: download the image first)"
    return UnreadableInput(f"the image cannot be read: {reason}", name=name)


@dataclass(frozen=True, eq=False)
class Bitmap:
    """An uncompressed BMP of uint8 pixels: ``[height, width, 3]`` in RGB order, or ``[height, width]`` gray.

    Gray is written as 8 bits with a palette of 256 grays, so it takes a third of the size.
    """

    pixels: npt.NDArray[np.uint8]

    @property
    def byte_size(self) -> int:
        """Length of the file."""
        return self._pixels_at + self._row_bytes * self.pixels.shape[0]

    def to_bytes(self) -> bytes:
        """The whole file."""
        data = bytearray(self.byte_size)
        self.write_into(memoryview(data))
        return bytes(data)

    def write_into(self, buffer: memoryview) -> None:
        """Write the file into ``buffer``, of length ``byte_size``."""
        height, width = self.pixels.shape[:2]
        is_gray = self.pixels.ndim == 2
        buffer[: _HEADERS.size] = _HEADERS.pack(
            b"BM",
            self.byte_size,
            self._pixels_at,
            _INFO_SIZE,
            width,
            height,
            1,
            8 if is_gray else 24,
            0,
            self._row_bytes * height,
            0,
            0,
            256 if is_gray else 0,
            0,
        )
        buffer[_HEADERS.size : self._pixels_at] = _GRAY_PALETTE if is_gray else b""
        used = width * (1 if is_gray else 3)
        rows: npt.NDArray[np.uint8] = np.ndarray((height, self._row_bytes), np.uint8, buffer, self._pixels_at)
        rows[:, used:] = 0
        # BMP rows run from bottom to top; channel by channel is four times faster than all at once.
        if is_gray:
            rows[:, :used] = self.pixels[::-1]
        else:
            for channel in range(3):
                rows[:, channel:used:3] = self.pixels[::-1, :, 2 - channel]

    @property
    def _pixels_at(self) -> int:
        return _HEADERS.size + (len(_GRAY_PALETTE) if self.pixels.ndim == 2 else 0)

    @property
    def _row_bytes(self) -> int:
        """A row's length, padded to a multiple of 4."""
        return -(-self.pixels.shape[1] * (1 if self.pixels.ndim == 2 else 3) // 4) * 4
