"""Messages of a video stream: what the client sends in the tensor ``message``, what the server answers in ``event``.

A message is a header, JSON behind its length, and a payload of bytes (docs/video.md has the conversation):

    4 bytes, little endian   length of the header
    the header               JSON in UTF-8: {"type": …, …}
    the rest                 the payload

An event is one JSON object, with result tensors beside it where its type is *results*: the first dimension of each is
the frames that the event tells of.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Literal, get_args

VERSION = 4
_LENGTH = struct.Struct("<I")
MAX_HEADER_BYTES = 1 << 20
MAX_TAG = 255
"""H.273 has a byte for each of its codes."""
MAX_ASPECT = 65535
"""H.264 has two bytes for each number of a sample aspect ratio (E.2.1)."""

DONE = "done"
"""The code of a stream whose every frame was answered."""

Mode = Literal["block", "drop_oldest"]
"""What happens where results are taken more slowly than frames come: the sender waits, or the oldest are dropped."""

MODES: tuple[Mode, ...] = get_args(Mode)


class BadMessage(ValueError):
    """The bytes are no message of this version; the text says what was seen."""


@dataclass(frozen=True, slots=True)
class Packet:
    """One coded picture. Times are in the stream's time base; None where the container states none.

    ``is_discarded``: the picture is not shown (it lies before the start of an edit list); others refer to it.
    """

    data: bytes
    pts: int | None
    dts: int | None
    duration: int
    is_key: bool
    is_discarded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """The first message of a stream.

    ``codec`` is FFmpeg's name, ``extradata`` the codec's own header where the container keeps it apart. ``transpose``,
    ``flip_rows`` and ``flip_columns`` say how pictures are turned to be shown. ``results`` is how many results the
    client takes before it gives more credit. ``fps`` and ``bitrate`` are what the container declares, 0 for nothing;
    ``matrix_tag`` (MatrixCoefficients of H.273, 2 is unspecified) and ``full_range`` (None is unspecified) are its
    colours, ``primaries_tag`` and ``transfer_tag`` (ColourPrimaries and TransferCharacteristics) what composed video is
    to say of them beside. ``sample_aspect_ratio`` is a stored pixel's width divided by its height, both at most
    ``MAX_ASPECT``. ``reorder_depth`` is by how many frames storage and display differ, None where unknown.
    ``parameters`` are numbers in the place of options of the pipeline, as those of a request for an image; servers that
    do not know them refuse a stream that sends any.
    """

    type: ClassVar[str] = "open"
    codec: str
    width: int
    height: int
    time_base: Fraction
    mode: Mode = "block"
    results: int = 16
    transpose: bool = False
    flip_rows: bool = False
    flip_columns: bool = False
    fps: float = 0.0
    bitrate: int = 0
    matrix_tag: int = 2
    full_range: bool | None = None
    primaries_tag: int = 2
    transfer_tag: int = 2
    sample_aspect_ratio: Fraction = Fraction(1)
    reorder_depth: int | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)
    extradata: bytes = b""
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Packets:
    """The next packets, in the order of storage. ``results`` gives ``Credit`` for so many results at the same time."""

    type: ClassVar[str] = "packets"
    packets: tuple[Packet, ...]
    results: int = 0


@dataclass(frozen=True, slots=True)
class Credit:
    """The client took ``results`` results and has room for as many more."""

    type: ClassVar[str] = "credit"
    results: int


@dataclass(frozen=True, slots=True)
class Close:
    """There are no more packets; the server still answers those that were sent."""

    type: ClassVar[str] = "close"


Message = Open | Packets | Credit | Close


def pack(message: Message) -> bytes:
    """Write a message as bytes."""
    header: dict[str, object] = {"type": message.type}
    payload: Sequence[bytes] = ()
    if isinstance(message, Open):
        fields = asdict(message)
        payload = [fields.pop("extradata")]
        ratios = {name: fields.pop(name) for name in ("time_base", "sample_aspect_ratio")}
        if not message.parameters:
            del fields["parameters"]
        header |= fields | {name: [ratio.numerator, ratio.denominator] for name, ratio in ratios.items()}
    elif isinstance(message, Packets):
        payload = [packet.data for packet in message.packets]
        header["packets"] = [
            [len(packet.data), packet.pts, packet.dts, packet.duration, packet.is_key | packet.is_discarded << 1]
            for packet in message.packets
        ]
    if isinstance(message, Packets | Credit):
        header["results"] = message.results
    text = json.dumps(header, separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *payload])


def unpack(data: bytes | memoryview) -> Message:
    """Read the message in bytes. Raises ``BadMessage`` where they hold none."""
    view = memoryview(data).cast("B")
    if len(view) < _LENGTH.size:
        raise BadMessage(f"got {len(view)} bytes; a message begins with the length of its header")
    (length,) = _LENGTH.unpack_from(view)
    if length > min(MAX_HEADER_BYTES, len(view) - _LENGTH.size):
        raise BadMessage(f"the header declares {length} bytes; the message has {len(view) - _LENGTH.size}")
    payload = view[_LENGTH.size + length :]
    try:
        header = json.loads(bytes(view[_LENGTH.size : _LENGTH.size + length]))
        kind = header.pop("type")
        if kind == Open.type:
            return _open(header, payload)
        if kind == Packets.type:
            return Packets(_packets(header["packets"], payload), _whole(header["results"], "results"))
        if kind == Credit.type:
            return Credit(_whole(header["results"], "results"))
        if kind == Close.type:
            return Close()
    except BadMessage:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError, RecursionError) as error:
        raise BadMessage(f"the header cannot be read: {type(error).__name__}: {error}") from None
    raise BadMessage(f"the type {str(kind)[:40]!r} is none of open, packets, credit, close")


def _open(header: dict[str, Any], payload: memoryview) -> Open:
    if header.get("version") != VERSION:
        raise BadMessage(f"the client speaks version {header.get('version')!r} of the stream; this is {VERSION}")
    if header.get("mode", "block") not in MODES:
        raise BadMessage(f"the mode {header['mode']!r} is none of {', '.join(MODES)}")
    numerator, denominator = header.pop("time_base")
    for name in ("width", "height", "results", "bitrate", "matrix_tag"):
        _whole(header.get(name, 0), name)
    if header.get("full_range") not in (None, False, True):
        raise BadMessage(f"full_range must be true, false or nothing, got {header['full_range']!r}")
    for name in ("primaries_tag", "transfer_tag"):
        if _whole(header.get(name, 0), name) > MAX_TAG:
            raise BadMessage(f"{name} must be at most {MAX_TAG}, got {header[name]}")
    aspect = [_whole(number, "sample_aspect_ratio") for number in header.pop("sample_aspect_ratio", (1, 1))]
    if len(aspect) != 2 or not 0 < min(aspect) <= max(aspect) <= MAX_ASPECT:
        raise BadMessage(f"sample_aspect_ratio must be two numbers from 1 to {MAX_ASPECT}, got {aspect}"[:200])
    if header.get("reorder_depth") is not None:
        _whole(header["reorder_depth"], "reorder_depth")
    if not isinstance(header.get("parameters", {}), dict):
        raise BadMessage(f"parameters must be an object, got {header['parameters']!r:.60}")
    opened = Open(
        **header,
        time_base=Fraction(numerator, denominator),
        sample_aspect_ratio=Fraction(*aspect),
        extradata=bytes(payload),
    )
    if not isinstance(opened.codec, str) or opened.time_base <= 0:
        raise BadMessage("codec must be a name and time_base above 0")
    return opened


def _packets(table: list[list[Any]], payload: memoryview) -> tuple[Packet, ...]:
    found, at = [], 0
    for size, pts, dts, duration, flags in table:
        for name, value in (("pts", pts), ("dts", dts)):
            if value is not None and not isinstance(value, int):
                raise BadMessage(f"{name} must be a whole number or nothing, got {value!r}")
        end = at + _whole(size, "size")
        if end > len(payload):
            raise BadMessage(f"the packets declare {end} bytes; the message carries {len(payload)}")
        is_key, is_discarded = bool(_whole(flags, "flags") & 1), bool(flags & 2)
        found.append(Packet(bytes(payload[at:end]), pts, dts, _whole(duration, "duration"), is_key, is_discarded))
        at = end
    if at != len(payload):
        raise BadMessage(f"the packets declare {at} bytes; the message carries {len(payload)}")
    return tuple(found)


def _whole(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadMessage(f"{name} must be a whole number from 0 on, got {value!r}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What the server says of a stream.

    ``type``: *opened*, with the bounds that hold in ``fields``; *results*, with one entry of ``frames`` for each frame
    that has its result here: ``index`` (frame number from 0 in the order of display, counting every frame), ``pts`` (in
    the time base, None where unknown), ``pts_seconds``, ``latency_ms`` (from the receipt of the packet to the result),
    and of composed video ``key``, ``width`` and ``height``; *consumed*, where only counts changed; *ended*, the last
    word, with ``code`` and ``reason`` in ``fields``: ``DONE``, or a ``StreamRefusal`` of the stream or of one of its
    messages. The counts are totals of the stream so far: ``consumed_bytes`` of packets that the server no longer holds,
    frames ``decoded``, ``inferred``, ``dropped`` and ``concealed``, and packets ``unshown``, which came before the
    first that can be shown.

    ``color`` is how the newest frame became RGB, and before the first frame what the client's declaration leads to:
    ``matrix``, ``range``, and as ``matrix_from`` and ``range_from`` whether the *file* says so, the pipeline has
    *chosen* it, or it is *assumed*; of HDR also ``transfer`` (*pq*, *hlg*) and as ``transfer_as`` whether it is
    *mapped* to SDR or taken as if it were *sdr*. It is None where a declared matrix cannot be converted.

    A refusal is an event because errors of Triton's are not safe: a conversation whose caller asked for gRPC's own
    errors ends tritonserver 2.51 by one, where further messages wait.
    """

    type: Literal["opened", "results", "consumed", "ended"]
    consumed_bytes: int = 0
    decoded: int = 0
    inferred: int = 0
    dropped: int = 0
    concealed: int = 0
    unshown: int = 0
    color: Mapping[str, str] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    frames: Sequence[Mapping[str, Any]] = ()

    def to_json(self) -> str:
        """Write the event as one line of JSON."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Event:
        """Read an event; fields of a newer server are ignored. Raises ``BadMessage`` where the text holds none."""
        try:
            said = json.loads(text)
            return cls(**{name: said[name] for name in cls.__slots__ if name in said})
        except (ValueError, TypeError) as error:
            raise BadMessage(f"the event cannot be read: {error}") from None
