"""A cache on disk of decoded or resized pictures: what is kept is not decoded again, and gives the same samples."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np

from onestream.preprocess.backends.base import BackendName, Compiled, Pixels, Sample
from onestream.preprocess.backends.table import backend_named
from onestream.preprocess.compile import compile, compile_from_picture
from onestream.preprocess.cpu.file_lock import locked
from onestream.preprocess.definition import WHOLE_PICTURE, Definition
from onestream.preprocess.errors import BadDataset, BadImage, CannotCompile, say_once
from onestream.preprocess.headers.reader import Checked, Encoded, Header, byte_view
from onestream.preprocess.limits import Limits
from onestream.preprocess.moves import CenterCrop
from onestream.preprocess.operations import Color, Decode, Normalize, Output
from onestream.preprocess.storage.kept import kept_size, read_kept, write_kept
from onestream.preprocess.training.sources.samples import Pictures
from onestream.preprocess.variation import Vary, canvas_of

_SIZE = struct.Struct("<II")
_VERSION = 1
CacheOf = Literal["decoded", "resized"]


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder that keeps pictures as they are decoded, or as the definition resizes and crops them.

    *decoded*: the pixels of whole pictures, for any augmentation. *resized*: the pixels of the network's input, where
    nothing varies. Files have at most ``max_bytes`` together; when it is full, no more are kept. Any number of
    processes share a folder, also of other datasets and definitions; to empty it, delete it.

    Raises ``ValueError`` for an option out of range.
    """

    folder: str | os.PathLike[str]
    max_bytes: int
    of: CacheOf = "decoded"

    def __post_init__(self) -> None:
        if self.of not in ("decoded", "resized"):
            raise ValueError(f"of must be 'decoded' or 'resized', got {self.of!r}")
        if self.max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, got {self.max_bytes}")


class CachedPictures:
    """Pictures of which a cache keeps what ``kept`` makes of them, uint8 pixels; see ``Pictures``.

    Kept files are found by the bytes of the picture, the definition, the backend and the limits. A damaged one is
    written again. What is read are pixels, uint8 (height, width, 3) RGB, for ``compile_for``.
    """

    def __init__(
        self, pictures: Pictures, cache: Cache, kept: Definition, *, backend: BackendName, limits: Limits
    ) -> None:
        self.classes = pictures.classes
        self._pictures, self._kept, self._backend, self._limits = pictures, kept, backend, limits
        self._folder, self._max_bytes = Path(cache.folder), cache.max_bytes
        # Of so many bytes or more, pictures found no room.
        self._too_large = cache.max_bytes
        about = [_VERSION, kept.canonical_json(), backend, _version(backend), limits.model_dump_json()]
        self._about = json.dumps(about).encode()
        self._local = threading.local()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._reserve(self._folder, 0)
        except OSError as error:
            raise BadDataset(f"{self._folder} cannot be a cache: {error.strerror or error}") from None

    def __len__(self) -> int:
        """Number of pictures."""
        return len(self._pictures)

    def name(self, index: int) -> str:
        """See ``Pictures.name``."""
        return self._pictures.name(index)

    def read(self, index: int) -> Encoded:
        """Pixels, in place of an encoded image. Raises as ``Pictures.read``, and ``BadImage``."""
        data = self._pictures.read(index)
        key = hashlib.sha256(byte_view(data))
        key.update(self._about)
        name = key.hexdigest()[:40]
        path = self._folder / name[:2] / name[2:]
        found = read_kept(path)
        if found is None:
            pixels = np.ascontiguousarray(_as_rgb(self._pixels(data), self._kept.color))
            if pixels.nbytes < self._too_large:
                self._keep(path, pixels)
        else:
            height, width = _SIZE.unpack_from(found)
            pixels = np.frombuffer(found, np.uint8, offset=_SIZE.size).reshape(height, width, 3)
        return Checked(pixels, Header("BMP", pixels.shape[0], pixels.shape[1]))

    def _pixels(self, data: Encoded) -> Pixels:
        compiled = getattr(self._local, "compiled", None)
        if compiled is None:
            compiled = compile(self._kept, backend=self._backend, limits=self._limits, max_batch_size=1)
            self._local.compiled = compiled
        (pixels,) = compiled.run([data])
        if isinstance(pixels, BadImage):
            raise pixels
        return pixels

    def _keep(self, path: Path, pixels: Pixels) -> None:
        content = _SIZE.pack(*pixels.shape[:2]) + pixels.tobytes()
        try:
            if self._reserve(path, kept_size(content)):
                write_kept(path, content)
            else:
                self._too_large = min(self._too_large, pixels.nbytes)
                say_once(f"the cache {self._folder} is full ({self._max_bytes} bytes): what does not fit is not kept")
        except OSError as error:
            self._too_large = 0
            say_once(f"the cache {self._folder} cannot be written ({error}): no more pictures are kept")

    def _reserve(self, path: Path, size: int) -> bool:
        """Take so many bytes of the cache for a file, if it has none yet and they are left. Raises OSError."""
        with locked(self._folder / "lock"):
            # One that was damaged has its place already, and so has one that another process is writing.
            if path.exists():
                return True
            counter = self._folder / "used"
            try:
                used = int(counter.read_text())
            except (OSError, ValueError):
                used = _used(self._folder)
            if used + size > self._max_bytes:
                return False
            counter.write_text(str(used + size))
            path.parent.mkdir(exist_ok=True)
            path.touch()
        return True

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process."""
        return {name: value for name, value in self.__dict__.items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In another process."""
        self.__dict__.update(state)
        self._local = threading.local()


class _OfPixels(Compiled):
    """A definition that is run on what ``CachedPictures`` give."""

    def __init__(self, definition: Definition, limits: Limits, backend: BackendName) -> None:
        super().__init__(definition, limits)
        self._from_picture = compile_from_picture(definition, backend=backend, limits=limits)

    def run(self, images: Sequence[Encoded], varies: Sequence[Vary] | None = None) -> list[Sample | BadImage]:
        """See ``Compiled.run``."""
        samples: list[Sample | BadImage] = []
        for number, image in enumerate(images):
            assert isinstance(image, Checked)
            pixels: Any = image.data
            try:
                samples.append(self._from_picture.run(pixels, None, None if varies is None else [varies[number]]))
            except BadImage as error:
                samples.append(error.as_result())
        return samples


def compile_for(
    pictures: Pictures, definition: Definition, *, backend: BackendName, limits: Limits, **options: Any
) -> Compiled:
    """Make a definition executable on what pictures give: encoded ones, or pixels where a cache keeps them.

    ``options`` and errors are those of ``compile``.
    """
    if isinstance(pictures, CachedPictures):
        return _OfPixels(definition, limits, backend)
    return compile(definition, backend=backend, limits=limits, **options)


def kept_by(cache: Cache, definition: Definition) -> Definition:
    """What a cache keeps of pictures, as a definition. Raises ``CannotCompile`` where samples would differ."""
    if cache.of == "resized":
        return definition.stage("crop")
    if definition.scales_dct:
        raise CannotCompile("a cache of='decoded' keeps whole pictures, and dct_scaling decodes smaller ones")
    return WHOLE_PICTURE.model_copy(
        update={"operations": (definition.source.model_copy(update={"color": "rgb"}), WHOLE_PICTURE.network_input)}
    )


def made_of_resized(definition: Definition) -> Definition:
    """What follows the geometry of a definition, for the pixels that a cache of *resized* kept."""
    decode = definition.source.model_copy(update={"dct_scaling": False})
    assert isinstance(decode, Decode)
    rest = [operation for operation in definition.operations if isinstance(operation, Normalize | Output)]
    # It moves nothing, and says the size.
    return Definition(operations=(decode, CenterCrop(size=canvas_of(definition)), *rest))


def _used(folder: Path) -> int:
    """The bytes of all files in a folder and below."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # one that another process has just renamed
            total += path.stat().st_size if path.is_file() else 0
    return total


def _version(backend: BackendName) -> str:
    for distribution in backend_named(backend).distributions:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(distribution)
    return ""


def _as_rgb(pixels: Pixels, color: Color) -> Pixels:
    """Pixels (height, width, channels) of a color as RGB; of gray the three are equal, and gray again the same."""
    if color == "gray":
        return np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    return pixels if color == "rgb" else pixels[..., ::-1]
