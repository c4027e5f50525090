"""The results of a video stream: frames, gaps, totals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from onestream.client._transports.base import Tensors
from onestream.client.answers import detections, holds_regions, regions
from onestream.client.regions import Regions
from onestream.client.results import Detections, Label
from onestream.wire.tensor_names import BOXES, CLASS_IDS, IMAGE_SIZE, LABELS, QUADS, SCORES, VIDEO

_LISTED = 64
"""A tensor of at most so many values is written out in JSON; of a larger one only its kind."""
_OF_A_REQUEST = ("model", "request_id", "latency_ms")
"""Fields of a result that say nothing of a frame, or what the frame says itself."""


@dataclass(frozen=True, slots=True)
class EncodedFrame:
    """A picture that the pipeline composed or drew into, as H.264 (Annex B); a key frame carries its parameter sets."""

    data: bytes = field(repr=False)
    is_key: bool
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class FrameResult:
    """The result of one frame.

    ``frame_index`` counts the frames that the server decoded, from 0 in the order of display, also those without a
    result; it goes on after a reconnection. ``pts`` is in the time base of the stream, ``pts_seconds`` in seconds, both
    None where the stream says nothing; after a reconnection ``pts_seconds`` goes on by this machine's clock.
    ``latency_ms`` runs from handing the frame's packet over to the result (of a live stream: from its arrival here,
    waiting included); ``server_latency_ms`` from the server's receipt of the packet to its sending of the result.
    ``labels`` are the classes, best first, where the pipeline classifies; ``detections`` the objects where it detects,
    ``regions`` those of a cascade, a ``Reading`` where it reads text, both in pixels of the frame as displayed;
    ``tensors`` all outputs, without batch dimension. ``video`` is the frame's picture where the pipeline has an output
    (``VideoWriter`` makes a file of them).
    ``after_gap``: the connection to the source or the server was lost before this frame.
    """

    frame_index: int
    pts: int | None
    pts_seconds: float | None
    latency_ms: float
    server_latency_ms: float
    tensors: Tensors = field(repr=False)
    labels: tuple[Label, ...] = ()
    after_gap: bool = False
    video: EncodedFrame | None = None
    detections: Detections | None = None
    regions: Regions | None = None

    @property
    def found(self) -> Detections | Regions | None:
        """What was found in the frame, of whichever kind; None where the pipeline finds nothing in pictures."""
        return self.regions if self.detections is None else self.detections

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON.

        Tensors that are not in ``labels``, ``found`` or ``video`` are listed, large ones by shape only.
        """
        fields: dict[str, Any] = {
            "frame_index": self.frame_index,
            "pts": self.pts,
            "pts_seconds": self.pts_seconds,
            "latency_ms": self.latency_ms,
            "server_latency_ms": self.server_latency_ms,
        }
        if self.after_gap:
            fields["after_gap"] = True
        if self.video is not None:
            video = self.video
            fields["video"] = {
                "bytes": len(video.data),
                "key": video.is_key,
                "width": video.width,
                "height": video.height,
            }
        if self.found is not None:
            found = self.found.to_dict()
            return fields | {name: value for name, value in found.items() if name not in _OF_A_REQUEST}
        if self.video is not None:
            return fields
        if self.labels:
            return fields | {"labels": [label.to_dict() for label in self.labels]}
        return fields | {"tensors": {name: _to_plain(array) for name, array in self.tensors.items()}}


def labels_of(tensors: Tensors) -> tuple[Label, ...]:
    """The classes in a frame's outputs, best first; none where the pipeline does not classify."""
    scores, class_ids = tensors.get(SCORES), tensors.get(CLASS_IDS)
    if BOXES in tensors or QUADS in tensors or scores is None or class_ids is None:
        return ()
    if scores.ndim != 1 or scores.shape != class_ids.shape:
        return ()
    sent = tensors.get(LABELS)
    names = [b"%d" % class_id for class_id in class_ids] if sent is None or sent.shape != scores.shape else list(sent)
    return tuple(
        Label(label=name.decode(errors="replace"), class_id=int(class_id), score=float(score))
        for score, class_id, name in zip(scores, class_ids, names, strict=True)
    )


def detections_of(model: str, tensors: Tensors, latency_ms: float) -> Detections | None:
    """The objects in a frame's outputs; None where the pipeline does not detect.

    Raises UnexpectedResponse where they are not as they must be.
    """
    if BOXES not in tensors or IMAGE_SIZE not in tensors or holds_regions(tensors):
        return None
    return detections(model, {name: array[None] for name, array in tensors.items()}, "", latency_ms)


def regions_of(model: str, tensors: Tensors, latency_ms: float) -> Regions | None:
    """The regions in a frame's outputs; None where the pipeline is no cascade.

    Raises UnexpectedResponse where they are not as they must be.
    """
    if not holds_regions(tensors):
        return None
    return regions(model, {name: array[None] for name, array in tensors.items()}, "", latency_ms)


def encoded_in(tensors: Tensors, fields: Mapping[str, Any]) -> EncodedFrame | None:
    """The picture in a frame's outputs and what its event says of it; None where the pipeline composes none."""
    sent = tensors.get(VIDEO)
    if sent is None or "key" not in fields:
        return None
    return EncodedFrame(sent.tobytes(), bool(fields["key"]), int(fields["width"]), int(fields["height"]))


def _to_plain(array: Any) -> Any:
    if array.size > _LISTED or array.dtype == object:
        return {"dtype": str(array.dtype), "shape": list(array.shape)}
    return array.tolist()


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without connection: ``frame_index`` of the first frame after it, its length, and why."""

    frame_index: int
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class StreamColor:
    """How the server makes RGB of a stream's pictures.

    ``matrix`` (bt601, bt709, bt2020) and ``range`` (limited, full), and where each comes from: *file*, the video says
    it; *chosen*, the pipeline does; *assumed*, neither does. Of HDR ``transfer`` is *pq* or *hlg*, and ``transfer_as``
    whether it is *mapped* to SDR or its values are taken as if they were *sdr*; of other video both are empty.
    """

    matrix: str
    range: str
    matrix_from: str
    range_from: str
    transfer: str = ""
    transfer_as: str = ""

    def __str__(self) -> str:
        how = {"": "", "sdr": f", {self.transfer} (as SDR)"}.get(self.transfer_as, f", {self.transfer} (mapped)")
        return f"{self.matrix} ({self.matrix_from}), {self.range} ({self.range_from}){how}"

    def to_dict(self) -> dict[str, str]:
        """Plain values, ready for JSON, without what is empty."""
        return {name: value for name, value in asdict(self).items() if value or not name.startswith("transfer")}


def color_in(said: Mapping[str, Any] | None) -> StreamColor | None:
    """The colours in an event; None where a server says nothing of them."""
    if not isinstance(said, Mapping):
        return None
    return StreamColor(**{field.name: str(said.get(field.name, "")) for field in fields(StreamColor)})


@dataclass(frozen=True, slots=True)
class Totals:
    """Frames of a stream so far.

    ``decoded``, ``inferred`` and ``concealed`` are the server's counts; ``dropped`` those that got no result because
    the stream may not wait, ``unsent`` of them already here, before they were sent. ``unshown`` are packets before the
    first that could be shown, as where a stream is joined between key frames.
    """

    decoded: int = 0
    inferred: int = 0
    dropped: int = 0
    concealed: int = 0
    unsent: int = 0
    unshown: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.decoded + other.decoded,
            self.inferred + other.inferred,
            self.dropped + other.dropped,
            self.concealed + other.concealed,
            self.unsent + other.unsent,
            self.unshown + other.unshown,
        )
