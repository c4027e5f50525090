"""Ways through a cascade: who decodes a picture, and who makes the networks' inputs of it and of its regions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from onestream.measure.parity.library_baselines import OpenCv, with_channels
from onestream.measure.parity.subject import Photo, Pixels, Refused
from onestream.preprocess import (
    WHOLE_PICTURE,
    BadImage,
    Definition,
    FromPicture,
    Limits,
    compile,
    compile_from_picture,
)
from onestream.preprocess.backends.base import ON_CPU, BackendName, CpuBackendName, Sample, network_layout
from onestream.preprocess.backends.reference import in_color
from onestream.preprocess.backends.table import BACKENDS
from onestream.preprocess.geometry import Size
from onestream.preprocess.variation import Vary

Maker = Callable[[Definition], FromPicture]
"""Makes a definition executable on decoded pictures. Raises ``CannotCompile``."""


class Way(ABC):
    """One way, under the name of a subject; ``judged`` and ``backend`` are that subject's."""

    def __init__(self, name: str, *, judged: bool, backend: BackendName = ON_CPU) -> None:
        self.name, self.judged, self.backend = name, judged, backend
        self._last: tuple[Photo, Pixels] | None = None

    def picture(self, photo: Photo) -> Pixels:
        """A decoded photo, upright, uint8 (height, width, 3) RGB. Raises ``Refused``.

        The last one is kept: its regions are looked at one after the other.
        """
        if self._last is None or self._last[0] is not photo:
            self._last = (photo, self._decode(photo.data))
        return self._last[1]

    @abstractmethod
    def from_picture(self, definition: Definition) -> FromPicture:
        """What follows ``decode`` or ``region`` in a definition. Raises ``CannotCompile``."""

    @abstractmethod
    def _decode(self, data: bytes) -> Pixels:
        """See ``picture``."""

    def close(self) -> None:  # noqa: B027 (OpenCV's holds nothing)
        """Release what is held."""


class OurWay(Way):
    """A backend on the CPU. Raises as ``preprocess.compile`` does."""

    def __init__(self, backend: CpuBackendName, limits: Limits, *, name: str = "") -> None:
        super().__init__(name or f"{backend} (cpu)", judged=True, backend=BACKENDS[backend].judged_as)
        self._own, self._limits = backend, limits
        self._decoder = compile(WHOLE_PICTURE, backend=backend, limits=limits, max_batch_size=1)

    def from_picture(self, definition: Definition) -> FromPicture:
        """See ``Way.from_picture``."""
        return compile_from_picture(definition, backend=self._own, limits=self._limits)

    def _decode(self, data: bytes) -> Pixels:
        (picture,) = self._decoder.run([data])
        if isinstance(picture, BadImage):
            raise Refused(str(picture))
        return picture

    def close(self) -> None:
        """Close the decoder."""
        self._decoder.close()


class OpenCvWay(Way):
    """``imread``; a slice of the picture for a box, ``warpPerspective`` for a quadrilateral; ``resize``.

    Raises ``BackendMissing``.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__("OpenCV", judged=False)
        self._limits, self._library = limits, OpenCv(WHOLE_PICTURE)

    def from_picture(self, definition: Definition) -> FromPicture:
        """See ``Way.from_picture``."""
        return _OpenCvFromPicture(definition, self._limits)

    def _decode(self, data: bytes) -> Pixels:
        try:
            return self._library.decode(data)
        except Exception as error:  # OpenCV raises what it likes on files that it cannot read
            raise Refused(f"{type(error).__name__}: {error}") from None


class _OpenCvFromPicture(FromPicture):
    """Sizes, corners and windows are the definition's own, so that only the filters and the places of pixels differ."""

    def __init__(self, definition: Definition, limits: Limits) -> None:
        super().__init__(definition, limits)
        self._library = OpenCv(definition)

    def _sample(self, pixels: Pixels, vary: Vary | None = None) -> Sample:  # noqa: ARG002 (nothing varies here)
        moved: Any = np.asarray(in_color(Image.fromarray(pixels), self.definition.color))
        for operation in self.definition.geometry:
            moved = self._library.move(operation, moved)
        return network_layout(self.definition, with_channels(moved))

    def _rectified(
        self,
        picture: Pixels,
        transform: npt.NDArray[np.float64],
        size_hw: Size,
        *,
        fill: int | None = None,  # noqa: ARG002 (nothing varies here)
        moved: npt.NDArray[np.float64] | None = None,  # noqa: ARG002
    ) -> Pixels:
        return self._library.rectified(picture, transform, size_hw)
