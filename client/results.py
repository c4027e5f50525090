"""The typed answers of a served pipeline."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from onestream.client._transports.base import Tensors
from onestream.client.errors import OnestreamError
from onestream.client.plain_values import plain
from onestream.client.regions import Regions, quads_of
from onestream.wire.install import install_command

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class Label:
    """One class that the network considered, with its score (the larger, the more likely).

    ``label`` is its name; the id as text where the server sends no names.
    """

    label: str
    class_id: int
    score: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"label": self.label, "class_id": self.class_id, "score": self.score}


@dataclass(frozen=True, slots=True)
class Classification:
    """The classes of one image, best first; there is at least one.

    ``latency_ms`` runs from handing the request to the transport until its answer was read, retries
    included; reading and encoding the image are not in it. ``request_id`` also appears in the server's log.
    """

    labels: tuple[Label, ...]
    model: str
    request_id: str
    latency_ms: float

    @property
    def top(self) -> Label:
        """The label with the highest score."""
        return self.labels[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON, under the names that they have on the wire."""
        return {
            "model": self.model,
            "request_id": self.request_id,
            "latency_ms": self.latency_ms,
            "scores": [label.score for label in self.labels],
            "class_ids": [label.class_id for label in self.labels],
            "labels": [label.label for label in self.labels],
        }


NO_TRACK = -1
"""The track id of an object that belongs to no track."""


@dataclass(frozen=True, slots=True)
class Detection:
    """One object: its class, its score and its box, (x0, y0, x1, y1) in pixels of the picture.

    ``track_id`` is its number across the frames of a tracked video (``onestream.client.video.tracked``), from 1 on.
    """

    box: tuple[float, float, float, float]
    label: str
    class_id: int
    score: float
    track_id: int = NO_TRACK

    def __str__(self) -> str:
        track = "" if self.track_id == NO_TRACK else f" #{self.track_id}"
        return f"{self.label}{track} {self.score:.2f}"


@dataclass(frozen=True, slots=True, eq=False)
class Detections:
    """The objects in one picture, best first; there may be none. Iteration gives a ``Detection`` for each.

    ``boxes`` is float32 (n, 4): x0, y0, x1, y1 in pixels of the picture after its EXIF orientation, from the outer
    corner of the first, within the picture. ``scores`` float32 (n), ``class_ids`` int32 (n), ``labels`` n names, the id
    as text where the pipeline has none. ``image_size`` is (height, width) of the picture. ``latency_ms`` and
    ``request_id`` are as of ``Classification``; frames of a video have no request of their own, so theirs is empty.
    ``track_ids`` int32 (n) are there where a video is tracked; ``NO_TRACK`` stands for an object of no track.
    """

    boxes: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]
    class_ids: npt.NDArray[np.int32]
    labels: tuple[str, ...]
    image_size: tuple[int, int]
    model: str
    request_id: str
    latency_ms: float
    track_ids: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.boxes)

    def __iter__(self) -> Iterator[Detection]:
        track_ids = [NO_TRACK] * len(self) if self.track_ids is None else self.track_ids.tolist()
        for box, label, class_id, score, track_id in zip(
            self.boxes.tolist(), self.labels, self.class_ids.tolist(), self.scores.tolist(), track_ids, strict=True
        ):
            yield Detection((box[0], box[1], box[2], box[3]), label, class_id, score, track_id)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON, under the names that they have on the wire."""
        return {
            "model": self.model,
            "request_id": self.request_id,
            "latency_ms": self.latency_ms,
            "boxes": self.boxes.tolist(),
            "scores": self.scores.tolist(),
            "class_ids": self.class_ids.tolist(),
            "labels": list(self.labels),
            "image_size": list(self.image_size),
        } | ({} if self.track_ids is None else {"track_ids": self.track_ids.tolist()})

    def to_coco(self, image_id: int | str) -> list[dict[str, Any]]:
        """The entries of COCO's results format (https://cocodataset.org/#format-results) for a picture with this id.

        ``bbox`` is x, y, width, height in pixels; ``category_id`` the class id as the pipeline gives it.
        """
        return [
            {
                "image_id": image_id,
                "category_id": one.class_id,
                "bbox": [one.box[0], one.box[1], one.box[2] - one.box[0], one.box[3] - one.box[1]],
                "score": one.score,
            }
            for one in self
        ]

    def to_supervision(self) -> Any:
        """A ``supervision.Detections``, with the names as ``class_name``.

        Needs the package supervision, which the extra ``detect`` installs; raises ImportError without it.
        """
        try:
            import supervision
        except ImportError as error:
            raise ImportError(f"to_supervision needs the package supervision: {install_command('detect')}") from error

        return supervision.Detections(
            xyxy=self.boxes.copy(),
            confidence=self.scores.copy(),
            class_id=self.class_ids.astype(np.int64),
            tracker_id=None if self.track_ids is None else self.track_ids.astype(np.int64),
            data={"class_name": np.array(self.labels, dtype=str)},
        )

    def draw(self, image: Image) -> Image:
        """A copy of ``image``, upright and in RGB, with boxes, names, tracks and scores drawn on it. Needs Pillow.

        Raises ValueError where the picture is not of ``image_size``.
        """
        from onestream.client.drawing import draw_quads

        quads = quads_of(self.boxes).tolist()
        objects = [(quad, one.class_id, str(one)) for quad, one in zip(quads, self, strict=True)]
        drawn: Image = draw_quads(image, objects, image_size=self.image_size)
        return drawn


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """What the network makes of one image as a vector: float32 (values). The rest is as of ``Classification``."""

    vector: npt.NDArray[np.float32]
    model: str
    request_id: str
    latency_ms: float

    def similarity(self, other: Embedding) -> float:
        """The cosine of the angle to another vector, -1 to 1; 0 where one of them is all zeros.

        Raises ValueError where the other has another length.
        """
        if self.vector.shape != other.vector.shape:
            raise ValueError(f"one embedding has {len(self.vector)} values, the other {len(other.vector)}")
        one, two = self.vector.astype(np.float64), other.vector.astype(np.float64)
        lengths = float(np.linalg.norm(one) * np.linalg.norm(two))
        return min(1.0, max(-1.0, float(one @ two) / lengths)) if lengths else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "model": self.model,
            "request_id": self.request_id,
            "latency_ms": self.latency_ms,
            "embedding": self.vector.tolist(),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Segmentation:
    """What each pixel of one image shows.

    ``masks`` are PNG files, 8-bit gray, of ``image_size``: (height, width) of the picture after its EXIF orientation.
    There is either one, whose levels are class ids (255: the network did not see the pixel), or one for each of
    ``class_ids``, whose levels of 0 to 255 are probabilities. ``labels`` names each of ``class_ids``, by the id as text
    where the pipeline has no names. The rest is as of ``Classification``.
    """

    masks: tuple[bytes, ...] = field(repr=False)
    class_ids: tuple[int, ...]
    labels: tuple[str, ...]
    image_size: tuple[int, int]
    model: str
    request_id: str
    latency_ms: float

    def classes(self) -> npt.NDArray[np.uint8]:
        """The class id of each pixel, (height, width); 255 for a pixel that the network did not see.

        Needs Pillow. Raises ValueError where the pipeline gives probabilities.
        """
        if len(self.masks) == len(self.class_ids):
            raise ValueError("the pipeline gives probabilities, expected output: classes; use probabilities()")
        return _pixels(self.masks[0])

    def probabilities(self) -> npt.NDArray[np.uint8]:
        """The probability of each of ``class_ids`` at each pixel, (classes, height, width), as 0 to 255.

        A pixel that the network did not see has 0. Needs Pillow. Raises ValueError where the pipeline gives classes.
        """
        if len(self.masks) != len(self.class_ids):
            raise ValueError("the pipeline gives classes, expected output: probabilities; use classes()")
        return np.stack([_pixels(mask) for mask in self.masks])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; the PNG files in base64."""
        return {
            "model": self.model,
            "request_id": self.request_id,
            "latency_ms": self.latency_ms,
            "masks": [b64encode(mask).decode() for mask in self.masks],
            "class_ids": list(self.class_ids),
            "labels": list(self.labels),
            "image_size": list(self.image_size),
        }


def _pixels(mask: bytes) -> npt.NDArray[np.uint8]:
    from PIL import Image

    return np.array(Image.open(io.BytesIO(mask)), np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """What a pipeline of a kind without a result of its own answered: arrays by name, each with batch dimension 1."""

    tensors: Tensors = field(repr=False)
    model: str
    request_id: str
    latency_ms: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON: texts are read as UTF-8, and what is no finite number is None."""
        return {
            "model": self.model,
            "request_id": self.request_id,
            "latency_ms": self.latency_ms,
            "tensors": {name: plain(array) for name, array in self.tensors.items()},
        }


Result = Classification | Detections | Embedding | Outputs | Regions | Segmentation
"""The result of a pipeline of any kind."""

ResultT = TypeVar("ResultT", bound=Result)


@dataclass(frozen=True, slots=True)
class Item(Generic[ResultT]):
    """The outcome for one image of many: exactly one of ``result`` and ``error`` is set.

    ``index`` counts the images from 0, ``source`` is the object that was given.
    """

    index: int
    source: object
    result: ResultT | None = None
    error: OnestreamError | None = None

    def __post_init__(self) -> None:
        if (self.result is None) == (self.error is None):
            raise ValueError("an Item holds either a result or an error, exactly one of them")

    def unwrap(self) -> ResultT:
        """The result, or the error raised."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Who answers at an address: ``name`` and ``version`` are the server's own words."""

    url: str
    name: str
    version: str
    extensions: tuple[str, ...]
