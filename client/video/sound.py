"""The sound of a stream's source: it stays here, and is copied as it is into the files made of the stream's frames."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.packet import Packet
    from av.stream import Stream

_EARLIEST_S = 0.1
"""Sound that begins so long before the first frame is kept: decoders need a packet or two to start with."""

LATEST_S = 1.0
"""Sound goes on for at most so long after a stream's last frame: in most files the tracks do not end together."""


class Sound:
    """The sound tracks of a stream's source. Give it to ``Client.stream`` and to ``VideoWriter``.

    What is read of the source waits here until a file takes it, so take it only where a file is written. The sound of a
    stream that connects again ends where the first connection was lost. One thread may put in, another take out.
    """

    def __init__(self) -> None:
        self._tracks: dict[int, Stream] = {}
        # Each with what its time is moved by.
        self._waiting: deque[tuple[Packet[Any], Fraction]] = deque()
        self._picture_s = self._joined_s = Fraction(0)
        self._shifts_s: tuple[Fraction, ...] = (Fraction(0),)
        # A container that is never written holds what the tracks are, when the source is closed.
        self._holder: OutputContainer | None = None

    @property
    def tracks(self) -> dict[int, Stream]:
        """Templates of the tracks, by their number in the source."""
        return self._tracks

    def begin(self, streams: Iterable[Stream]) -> bool:
        """The source was opened and has these tracks; False where it was before, and nothing is to be put in."""
        import av

        if self._holder is not None:
            return False
        self._holder = av.open(io.BytesIO(), "w", format="null")
        self._tracks = {stream.index: self._holder.add_stream_from_template(stream) for stream in streams}
        return True

    def follow(self, picture_s: Fraction, *, shift_s: Fraction) -> None:
        """The source's next picture is shown at ``picture_s``, which is ``shift_s`` after its own time.

        Where the source's clock goes back, pictures are shown later than it says (``wire.clock``), and sound with them.
        """
        self._picture_s = picture_s
        if abs(shift_s - self._shifts_s[-1]) > _EARLIEST_S:
            self._shifts_s, self._joined_s = (self._shifts_s[-1], shift_s), picture_s
        elif picture_s - self._joined_s > LATEST_S:
            self._shifts_s = self._shifts_s[-1:]

    def put(self, packet: Packet[Any]) -> None:
        """The next packet of the source."""
        # Where clips are joined, sound of the one before still comes among the pictures of the next.
        begins_s = _begins_s(packet)
        shift_s = min(self._shifts_s, key=lambda shift_s: abs(begins_s + shift_s - self._picture_s))
        self._waiting.append((packet, shift_s))

    def take(self, until_s: float) -> Iterable[tuple[Packet[Any], Fraction]]:
        """The packets that begin before ``until_s`` seconds, each with the seconds by which it is moved."""
        while self._waiting and _begins_s(self._waiting[0][0]) + self._waiting[0][1] < until_s:
            yield self._waiting.popleft()


class SoundCopy:
    """The sound in one file, beside its video.

    Make it before the file's first packet is written: it adds the tracks that the container takes. ``left_out`` names
    the others, a line each.
    """

    def __init__(self, sound: Sound, container: OutputContainer, name: str) -> None:
        self._sound, self._container = sound, container
        self._into: dict[int, Stream] = {}
        self._last: dict[int, int] = {}
        self.left_out: list[str] = []
        for number, track in sound.tracks.items():
            refusal = _refusal(container.format.name, track)
            if refusal is None:
                self._into[number] = container.add_stream_from_template(track)
            else:
                self.left_out.append(f"{name}: without the sound in {track.codec_context.name}: {refusal}")

    def write(self, until_s: float, *, origin_s: float) -> None:
        """Write what begins before ``until_s`` seconds of the stream, of which ``origin_s`` is the file's beginning."""
        for packet, moved_s in self._sound.take(until_s):
            into, base, begins_s = self._into.get(packet.stream_index), packet.time_base, _begins_s(packet) + moved_s
            if into is None or packet.dts is None or base is None or begins_s < origin_s - _EARLIEST_S:
                continue
            shift = round((Fraction(origin_s) - moved_s) / base)
            # A container takes no time twice; where a source's clock is coarse it may repeat one.
            at = max(packet.dts - shift, self._last.get(packet.stream_index, packet.dts - shift - 1) + 1)
            self._last[packet.stream_index] = at
            shown = packet.dts if packet.pts is None else packet.pts
            packet.pts, packet.dts = max(at, shown - shift), at
            packet.stream = into
            self._container.mux(packet)


def _begins_s(packet: Packet[Any]) -> float:
    at = packet.pts if packet.pts is not None else packet.dts
    # Sound without times goes out with whatever comes next, and is left out there.
    return float("-inf") if at is None or packet.time_base is None else float(at * packet.time_base)


def _refusal(format: str, track: Stream) -> str | None:
    """Why a container does not take a track; None where it does. Only writing its head tells."""
    import av

    try:
        with av.open(io.BytesIO(), "w", format=format) as trial:
            trial.add_stream_from_template(track)
            trial.start_encoding()
    except (av.FFmpegError, ValueError):
        return f"{format} does not take it"
    return None
