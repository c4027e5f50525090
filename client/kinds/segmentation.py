"""What each pixel of one image shows."""

from __future__ import annotations

import io
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from onestream.client.errors import UnexpectedResponse
from onestream.client.kinds.base import Array, Line, Result, Schema, Size, size_of
from onestream.wire.box_style import color_of
from onestream.wire.tensor_names import CLASS_IDS, IMAGE_SIZE, LABELS, MASKS

if TYPE_CHECKING:
    from PIL.Image import Image

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_OPACITY = 0.5
"""Of the colour of a class over the picture, where it is sure."""


@dataclass(frozen=True, slots=True, eq=False)
class Segmentation(Result):
    """What each pixel of one image shows.

    ``masks`` are PNG files, 8-bit gray, of ``image_size``: (height, width) of the picture after its EXIF orientation.
    There is either one, whose levels are class ids (255: the network did not see the pixel), or one for each of
    ``class_ids``, whose levels of 0 to 255 are probabilities. ``labels`` names each of ``class_ids``, by the id as text
    where the pipeline has no names.
    """

    masks: tuple[bytes, ...] = field(repr=False)
    class_ids: tuple[int, ...]
    labels: tuple[str, ...]
    image_size: Size

    kind: ClassVar[str] = "segmentation"
    noun: ClassVar[str] = "masks"
    where: ClassVar[str] = "of the picture"

    def classes(self) -> npt.NDArray[np.uint8]:
        """The class id of each pixel, (height, width); 255 for a pixel that the network did not see.

        Needs Pillow. Raises ValueError where the pipeline gives probabilities.
        """
        if self._gives_probabilities:
            raise ValueError("the pipeline gives probabilities, expected output: classes; use probabilities()")
        return _pixels(self.masks[0])

    def probabilities(self) -> npt.NDArray[np.uint8]:
        """The probability of each of ``class_ids`` at each pixel, (classes, height, width), as 0 to 255.

        A pixel that the network did not see has 0. Needs Pillow. Raises ValueError where the pipeline gives classes.
        """
        if not self._gives_probabilities:
            raise ValueError("the pipeline gives classes, expected output: probabilities; use classes()")
        return np.stack([_pixels(mask) for mask in self.masks])

    @classmethod
    def fields_of(cls, found: dict[str, Array], model: str) -> dict[str, Any]:
        masks, class_ids, (height, width) = found[MASKS], found[CLASS_IDS], size_of(found, model)
        if len(masks) not in (1, len(class_ids)):
            raise UnexpectedResponse(f"model {model!r} answered {len(masks)} masks, expected 1 or {len(class_ids)}")
        # Length and name of the first chunk, then width, height, bits and kind of colour: https://www.w3.org/TR/png
        head = _PNG_SIGNATURE + struct.pack(">I4sIIBB", 13, b"IHDR", width, height, 8, 0)
        if not all(file.startswith(head) for file in masks):
            raise UnexpectedResponse(
                f"model {model!r} answered masks that are not all PNG files, 8-bit gray, of the picture's "
                f"{width}x{height} pixels"
            )
        return {
            "masks": tuple(masks.tolist()),
            "class_ids": tuple(class_ids.tolist()),
            "labels": tuple(found[LABELS].tolist()),
            "image_size": (height, width),
        }

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Segmentation:
        return super(Segmentation, cls).from_dict({**said, MASKS: [b64decode(mask) for mask in said[MASKS]]})

    def values(self) -> dict[str, Any]:
        """The PNG files are in base64."""
        return {
            MASKS: [b64encode(mask).decode() for mask in self.masks],
            CLASS_IDS: list(self.class_ids),
            LABELS: list(self.labels),
            IMAGE_SIZE: list(self.image_size),
        }

    def schema(self, *, top: int = 1, is_flat: bool = False) -> Schema:
        if is_flat:
            return {"label": str, "class_id": int, "share": float, "image_height": int, "image_width": int}
        return {MASKS: list[bytes], CLASS_IDS: list[int], LABELS: list[str], IMAGE_SIZE: list[int]}

    def records(self, *, is_flat: bool = False) -> list[dict[str, Any]]:
        """Flat: the share of the picture of each class that is seen, else one without a label. Needs Pillow."""
        if not is_flat:
            return [self.values() | {MASKS: list(self.masks)}]
        height, width = self.image_size
        size = {"image_height": height, "image_width": width}
        seen = [
            {"label": name, "class_id": class_id, "share": share, **size} for name, class_id, share in self._shares()
        ]
        return seen or [size]

    def summary(self) -> list[Line]:
        """The part of the picture that is of each class, most first; those of which nothing is seen are left out."""
        return [Line(name, where=f"{share:.1%}") for name, _, share in self._shares()]

    def caption(self) -> list[str]:
        return [", ".join(f"{name} {share:.0%}" for name, _, share in self._shares()) or self.nothing]

    @property
    def drawn_size(self) -> Size:
        return self.image_size

    def draw(self, image: Image) -> Image:
        """A copy of ``image``, upright and in RGB, with the colour of its class over each pixel. Needs Pillow.

        Where the network is less sure, or saw nothing, more of the picture shows. Raises ValueError where the picture
        is not of ``image_size``.
        """
        from PIL.Image import fromarray

        from onestream.client.kinds.drawing import upright

        picture = upright(image, self.image_size)
        for class_id, levels in self._levels():
            alpha = fromarray((levels * _OPACITY).astype(np.uint8))
            picture.paste(color_of(class_id), (0, 0), alpha)
        return picture

    @property
    def _gives_probabilities(self) -> bool:
        return len(self.masks) == len(self.class_ids)

    def _levels(self) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """Each class with how much each pixel is of it, 0 to 255."""
        classes = None if self._gives_probabilities else self.classes()
        for index, class_id in enumerate(self.class_ids):
            levels = _pixels(self.masks[index]) if classes is None else (classes == class_id) * np.uint8(255)
            yield class_id, levels

    def _shares(self) -> list[tuple[str, int, float]]:
        """Name, id and part of the picture of each class that is seen, most first."""
        names = dict(zip(self.class_ids, self.labels, strict=True))
        shares = {class_id: float((levels >= 128).mean()) for class_id, levels in self._levels()}
        seen = sorted(shares, key=lambda class_id: -shares[class_id])
        return [(names[class_id], class_id, shares[class_id]) for class_id in seen if shares[class_id] > 0]


def _pixels(mask: bytes) -> npt.NDArray[np.uint8]:
    from PIL import Image

    return np.array(Image.open(io.BytesIO(mask)), np.uint8)
