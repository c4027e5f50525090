"""The results of a video stream: frames, gaps, totals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from onestream.client import kinds
from onestream.client._transports.base import Tensors
from onestream.client.kinds.base import Result
from onestream.wire.tensor_names import VIDEO


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
    ``result`` is what ``predict`` gives for a picture, of the pipeline's kind and in pixels of the frame as displayed;
    None where the pipeline answers pictures alone. ``tensors`` are all outputs, without batch dimension. ``video`` is
    the frame's picture where the pipeline has an output (``VideoWriter`` makes a file of them).
    ``after_gap``: the connection to the source or the server was lost before this frame.
    """

    frame_index: int
    pts: int | None
    pts_seconds: float | None
    latency_ms: float
    server_latency_ms: float
    tensors: Tensors = field(repr=False)
    result: Result | None = None
    after_gap: bool = False
    video: EncodedFrame | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON: those of the result, and of a picture its size. Of ``Outputs`` large ones are
        listed by shape only.
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
        return fields if self.result is None else fields | self.result.values_of_frame()


def result_of(kind: str | None, model: str, tensors: Tensors, latency_ms: float) -> Result | None:
    """The result in a frame's outputs; None where there is nothing but a picture.

    Raises UnexpectedResponse where they are not as they must be.
    """
    said = {name: array[None] for name, array in tensors.items() if name != VIDEO}
    return kinds.read(kind, model, said, "", latency_ms) if said else None


def encoded_in(tensors: Tensors, fields: Mapping[str, Any]) -> EncodedFrame | None:
    """The picture in a frame's outputs and what its event says of it; None where the pipeline composes none."""
    sent = tensors.get(VIDEO)
    if sent is None or "key" not in fields:
        return None
    return EncodedFrame(sent.tobytes(), bool(fields["key"]), int(fields["width"]), int(fields["height"]))


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
