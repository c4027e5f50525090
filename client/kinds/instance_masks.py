"""The objects in one picture and the pixels of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from onestream.client.errors import UnexpectedResponse
from onestream.client.kinds.base import Array, Line, Schema
from onestream.client.kinds.detection import Detections
from onestream.wire.box_style import color_of
from onestream.wire.run_lengths import Counts, area, check, decode, mask
from onestream.wire.tensor_names import RUN_LENGTHS

if TYPE_CHECKING:
    from PIL.Image import Image

_OPACITY = 0.5


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class InstanceMasks(Detections):
    """The objects in one picture and their pixels, best first; there may be none.

    Beside the fields of ``Detections``: ``run_lengths``, COCO's compressed run lengths of each object's mask, of
    ``image_size``. ``masks`` are their pixels.
    """

    run_lengths: tuple[str, ...]

    kind: ClassVar[str] = "instance_masks"
    rows: ClassVar[tuple[str, ...]] = (*Detections.rows, RUN_LENGTHS)

    @property
    def masks(self) -> npt.NDArray[np.bool_]:
        """The mask of each object, (n, height, width). Made anew each time: 2 MB an object at 1920x1080."""
        masks = [mask(counts, self.image_size) for counts in self._counts]
        return np.stack(masks) if masks else np.empty((0, *self.image_size), bool)

    @property
    def areas(self) -> list[int]:
        """How many pixels each object has."""
        return [area(counts) for counts in self._counts]

    @property
    def _counts(self) -> list[Counts]:
        return [decode(one) for one in self.run_lengths]

    @classmethod
    def fields_of(cls, found: dict[str, Array], model: str) -> dict[str, Any]:
        fields = Detections.fields_of(found, model)
        height, width = fields["image_size"]
        try:
            for one in found[RUN_LENGTHS].tolist():
                check(decode(one), (height, width))
        except ValueError as error:
            raise UnexpectedResponse(f"model {model!r} answered a mask for {height}x{width} pixels: {error}") from None
        return fields | {RUN_LENGTHS: tuple(found[RUN_LENGTHS].tolist())}

    def values(self) -> dict[str, Any]:
        return Detections.values(self) | {RUN_LENGTHS: list(self.run_lengths)}

    def schema(self, *, top: int = 1, is_flat: bool = False) -> Schema:
        """See ``Result.schema``: a flat table has the number of pixels, and the run lengths."""
        more = {"area": int, RUN_LENGTHS: str} if is_flat else {RUN_LENGTHS: list[str]}
        return Detections.schema(self, top=top, is_flat=is_flat) | more

    def records(self, *, is_flat: bool = False) -> list[dict[str, Any]]:
        found = Detections.records(self, is_flat=is_flat)
        if is_flat:
            for record, count, one in zip(found, self.areas, self.run_lengths, strict=False):
                record |= {"area": count, RUN_LENGTHS: one}
        return found

    def summary(self) -> list[Line]:
        lines = zip(Detections.summary(self), self.areas, strict=True)
        return [Line(line.what, line.score, f"{line.where}, {count} pixels") for line, count in lines]

    def _draw_below(self, picture: Image) -> None:
        """The colour of its class over each object's pixels."""
        from PIL.Image import fromarray

        for class_id, counts in zip(self.class_ids.tolist(), self._counts, strict=True):
            levels = mask(counts, self.image_size) * np.uint8(255 * _OPACITY)
            picture.paste(color_of(class_id), (0, 0), fromarray(levels))

    def to_coco(self, image_id: int | str) -> list[dict[str, Any]]:
        """See ``Detections.to_coco``; ``segmentation`` has the run lengths, as pycocotools takes them."""
        size = list(self.image_size)
        entries = zip(Detections.to_coco(self, image_id), self.run_lengths, strict=True)
        return [entry | {"segmentation": {"size": size, "counts": counts}} for entry, counts in entries]
