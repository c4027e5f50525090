"""Bounds on what one packet of H.264 or HEVC may hold: FFmpeg's decoders pay for every unit, however small it is.

For each NAL unit FFmpeg keeps 4 KB until the stream ends, so that 4 MB of start codes took 4 GB; for each message of
supplemental information some hundred bytes. Packets of the other codecs cost no more memory than they have bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from onestream.preprocess.errors import BadSample
from onestream.preprocess.video.streams.skipping import nal_length_size

MOST_UNITS = 1024
"""NAL units in a packet. HEVC allows 600 slice segments in a picture (H.265, table A.8), H.264 one slice for 24
macroblocks, which are 340 at 1080p (H.264, A.3.3); parameter sets and supplemental information come beside them."""

MOST_SEI_BYTES = 64 * 1024
"""Supplemental enhancement information in a packet: captions, colours and an encoder's settings are a few KB."""

MOST_HEADER_BYTES = 64 * 1024
"""A codec's own header (``extradata``): its parameter sets are some hundred bytes."""

_SEI = {"h264": (6,), "hevc": (39, 40)}
"""nal_unit_type of supplemental information: H.264 and HEVC, tables 7-1."""


class PacketBounds:
    """Refuses packets of a stream that would take memory out of all proportion to their size.

    ``codec`` is FFmpeg's name; ``extradata`` says whether units follow start codes or lengths. Raises ``BadSample`` for
    a header that is too large or has too many units.
    """

    def __init__(self, codec: str, extradata: bytes) -> None:
        if len(extradata) > MOST_HEADER_BYTES:
            raise BadSample(f"the codec's header has {len(extradata)} bytes; at most {MOST_HEADER_BYTES} are allowed")
        self._sei = _SEI.get(codec)
        self._shift = 1 if codec == "hevc" else 0
        self._mask = 63 if codec == "hevc" else 31
        self._length_size: int | None = None
        self.check(extradata)
        if codec == "h264":
            self._length_size = nal_length_size(extradata)
        elif codec == "hevc" and len(extradata) > 22 and extradata[0] == 1:
            self._length_size = (extradata[21] & 3) + 1

    def check(self, data: bytes) -> None:
        """Raise ``BadSample`` for a packet of too many units, or with too much supplemental information."""
        if self._sei is None:
            return
        sei_bytes = 0
        for number, (begin, end) in enumerate(_units(data, self._length_size)):
            if number == MOST_UNITS:
                raise BadSample(f"a packet has more than {MOST_UNITS} NAL units; at most so many are allowed")
            if data[begin] >> self._shift & self._mask in self._sei:
                sei_bytes += end - begin
        if sei_bytes > MOST_SEI_BYTES:
            raise BadSample(
                f"a packet has {sei_bytes} bytes of supplemental information; at most {MOST_SEI_BYTES} are allowed"
            )


def _units(data: bytes, length_size: int | None) -> Iterator[tuple[int, int]]:
    """The beginning and end of a packet's units, at least one byte each, as FFmpeg may find them."""
    if length_size is None:
        yield from _after_start_codes(data, 0, len(data))
        return
    at = 0
    while at + length_size < len(data):
        begin = at + length_size
        at = begin + int.from_bytes(data[at:begin], "big")
        if begin < at <= len(data):
            yield begin, at
        # Within a unit, or beyond a wrong length, FFmpeg goes on at the next start code.
        yield from _after_start_codes(data, begin, min(at, len(data)))
        if at == begin:
            yield begin, begin + 1


def _after_start_codes(data: bytes, first: int, last: int) -> Iterator[tuple[int, int]]:
    start = data.find(b"\0\0\1", first, last)
    while start >= 0 and start + 3 < last:
        follows = data.find(b"\0\0\1", start + 3, last)
        yield start + 3, follows if follows >= 0 else last
        start = follows
