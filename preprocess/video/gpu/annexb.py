"""H.264 and HEVC as a byte stream with start codes (Annex B), which is what NVDEC reads.

MP4 and Matroska store NAL units behind their length, and parameter sets apart from the packets (ISO/IEC 14496-15).
"""

from __future__ import annotations

from collections.abc import Iterator

from onestream.preprocess.video.streams.skipping import nal_length_size

_START = b"\0\0\0\1"
_SEQUENCE_SETS = {"h264": 7, "hevc": 33}
_KEY_SLICES = {"h264": range(5, 6), "hevc": range(16, 22)}
"""nal_unit_type of a sequence parameter set, and of slices where decoding can begin: H.264 and HEVC, tables 7-1."""


class ByteStream:
    """Brings the packets of one stream into the form that NVDEC reads.

    ``codec`` is FFmpeg's name; ``extradata`` is avcC, hvcC or parameter sets as Annex B. ``headers`` are the parameter
    sets in it; of a header that is cut short, those that can be read. Other codecs' packets stay as they are: AV1 and
    VP9 carry their headers in every packet where decoding can begin.
    """

    def __init__(self, codec: str, extradata: bytes) -> None:
        self._codec = codec
        self._length_size: int | None = None
        self.headers = b""
        if codec == "h264":
            self._length_size = nal_length_size(extradata)
            self.headers = extradata if self._length_size is None else _joined(_sets_of_avcc(extradata))
        elif codec == "hevc":
            # hvcC begins with its version, 1; Annex B with zeros.
            if len(extradata) > 22 and extradata[0] == 1:
                self._length_size = (extradata[21] & 3) + 1
            self.headers = extradata if self._length_size is None else _joined(_sets_of_hvcc(extradata))

    def convert(self, data: bytes) -> bytes:
        """A packet with start codes in the place of lengths; a length that leads beyond the packet ends it there.

        Packets that have start codes all the same, as some programs write them, stay as they are.
        """
        if self._length_size is None:
            return data
        if data.startswith((_START, _START[1:])) and not _is_whole(data, self._length_size):
            return data
        return _joined(_units(data, self._length_size))

    def sequence_sets(self, data: bytes) -> bytes:
        """The sequence parameter sets in a converted packet, one after the other; nothing for other codecs."""
        if self._codec not in _SEQUENCE_SETS:
            return b""
        wanted = _SEQUENCE_SETS[self._codec]
        return b"".join(unit for unit in _split(data) if self._kind(unit) == wanted)

    def is_key(self, data: bytes) -> bool:
        """Whether a converted packet of H.264 or HEVC holds a picture where decoding can begin; False for others."""
        wanted = _KEY_SLICES.get(self._codec, range(0))
        return bool(wanted) and any(self._kind(unit) in wanted for unit in _split(data))

    def _kind(self, unit: bytes) -> int:
        return unit[0] & 31 if self._codec == "h264" else unit[0] >> 1 & 63


def _joined(units: Iterator[bytes]) -> bytes:
    return b"".join(_START + unit for unit in units)


def _units(data: bytes, length_size: int) -> Iterator[bytes]:
    at = 0
    while at + length_size < len(data):
        length = int.from_bytes(data[at : at + length_size], "big")
        at += length_size
        if length:
            yield data[at : at + length]
        at += length


def _is_whole(data: bytes, length_size: int) -> bool:
    """Whether the lengths lead exactly to the end."""
    at = 0
    while at < len(data):
        at += length_size + int.from_bytes(data[at : at + length_size], "big")
    return at == len(data)


def _split(data: bytes) -> Iterator[bytes]:
    """The NAL units of a byte stream, without the zeros between them."""
    start = data.find(b"\0\0\1")
    while start >= 0:
        follows = data.find(b"\0\0\1", start + 3)
        unit = data[start + 3 : follows if follows >= 0 else len(data)].rstrip(b"\0")
        if unit:
            yield unit
        start = follows


def _sets_of_avcc(extradata: bytes) -> Iterator[bytes]:
    """Sequence, then picture parameter sets (5.3.3.1.2)."""
    at = 5
    for mask in (31, 255):
        if at >= len(extradata):
            return
        count, at = extradata[at] & mask, at + 1
        for _ in range(count):
            length = int.from_bytes(extradata[at : at + 2], "big")
            if length:
                yield extradata[at + 2 : at + 2 + length]
            at += 2 + length


def _sets_of_hvcc(extradata: bytes) -> Iterator[bytes]:
    """Arrays of parameter sets (8.3.3.1.2)."""
    at = 23
    for _ in range(extradata[22]):
        count, at = int.from_bytes(extradata[at + 1 : at + 3], "big"), at + 3
        for _ in range(count):
            length = int.from_bytes(extradata[at : at + 2], "big")
            if not length or at >= len(extradata):
                return
            yield extradata[at + 2 : at + 2 + length]
            at += 2 + length
