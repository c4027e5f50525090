"""A value for each pixel of one image, such as its depth."""

from __future__ import annotations

import io
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from onestream.client.kinds.base import Array, Line, Result, Schema, Size
from onestream.wire.tensor_names import MAP

if TYPE_CHECKING:
    from PIL.Image import Image

_MOST = 2**16 - 1


@dataclass(frozen=True, slots=True, eq=False)
class DenseMap(Result):
    """A value for each pixel of one image: ``map``, float32 (height, width) of the picture after its EXIF orientation.

    It is 0 where a crop of the definition kept a pixel from the network. JSON and tables have a PNG file of 16 bits.
    """

    map: npt.NDArray[np.float32] = field(repr=False)

    kind: ClassVar[str] = "dense_map"
    noun: ClassVar[str] = "maps"
    what: ClassVar[str] = "map"
    where: ClassVar[str] = "values"

    @classmethod
    def fields_of(cls, found: dict[str, Array], model: str) -> dict[str, Any]:
        return {MAP: found[MAP]}

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> DenseMap:
        """Values are as near as 16 bits are. Needs Pillow."""
        from PIL import Image

        levels = np.asarray(Image.open(io.BytesIO(b64decode(said[MAP]))), np.float64) / _MOST
        values = said["low"] + levels * (said["high"] - said["low"])
        return super(DenseMap, cls).from_dict({**said, MAP: values})

    def to_png16(self) -> bytes:
        """A PNG file of 16 bits, gray: 0 is the lowest value, 65535 the highest. Needs Pillow."""
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(np.rint(self._parts * _MOST).astype(np.uint16)).save(file, "PNG", compress_level=1)
        return file.getvalue()

    def values(self) -> dict[str, Any]:
        """The PNG file is in base64; ``low`` and ``high`` are the values of its 0 and 65535."""
        return {MAP: b64encode(self.to_png16()).decode(), "low": float(self.map.min()), "high": float(self.map.max())}

    def arrays(self) -> dict[str, Array]:
        return {MAP: self.map[None]}

    def schema(self, *, top: int = 1, is_flat: bool = False) -> Schema:
        return {"low": float, "high": float} | ({"mean": float} if is_flat else {MAP: bytes})

    def records(self, *, is_flat: bool = False) -> list[dict[str, Any]]:
        """Flat: the lowest, the highest and the mean value."""
        ends = {"low": float(self.map.min()), "high": float(self.map.max())}
        return [ends | ({"mean": float(self.map.mean())} if is_flat else {MAP: self.to_png16()})]

    def summary(self) -> list[Line]:
        height, width = self.map.shape
        ends = f"from {self.map.min():.4g} to {self.map.max():.4g}, mean {self.map.mean():.4g}"
        return [Line(f"{width}x{height}", where=ends)]

    @property
    def drawn_size(self) -> Size:
        height, width = self.map.shape
        return height, width

    def draw(self, image: Image) -> Image:
        """The map in colours in the place of the picture: the lowest value dark blue, the highest yellow. Needs Pillow.

        Raises ValueError where the picture is of another size.
        """
        from PIL import Image, ImageOps

        from onestream.client.kinds.drawing import upright

        upright(image, self.drawn_size)
        levels = Image.fromarray(np.rint(self._parts * 255).astype(np.uint8))
        return ImageOps.colorize(levels, black="#0d0887", mid="#cc4778", white="#f0f921")

    @property
    def _parts(self) -> npt.NDArray[np.float64]:
        """Values as parts of the way from the lowest to the highest."""
        values = self.map.astype(np.float64)
        span = float(np.ptp(values))
        return (values - values.min()) / span if span else np.zeros_like(values)
