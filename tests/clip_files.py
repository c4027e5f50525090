"""Makes small videos whose frames carry their number as bars of light and dark, so that it can be read back."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

HEIGHT, WIDTH = 96, 128
BAR = 16
COUNT = 40
_QUIET = {"libx264": {"x264-params": "log-level=none"}, "libx265": {"x265-params": "log-level=none"}}
Pixels = npt.NDArray[np.uint8]


def picture(number: int, size_hw: tuple[int, int] = (HEIGHT, WIDTH)) -> Pixels:
    """RGB: 8 bars with the bits of ``number`` at the top, and below them colours that move."""
    height, width = size_hw
    rows, columns = np.mgrid[0:height, 0:width]
    pixels = np.stack([rows * 2, columns + 3 * number, 255 - rows - columns], axis=2) % 160 + 40
    for bit in range(8):
        pixels[:24, bit * BAR : (bit + 1) * BAR] = 215 if number >> bit & 1 else 40
    return pixels.astype(np.uint8)


def number_in(pixels: Pixels) -> int:
    """The number in a decoded RGB picture."""
    return sum(int(pixels[8:16, bit * BAR + 4 : bit * BAR + 12].mean() > 128) << bit for bit in range(8))


@contextmanager
def _usual_scheduling() -> Iterator[None]:
    """Where it may, SVT-AV1 makes the thread that opens it a real-time one, and so every process started afterwards."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


def write_video(
    path: Path,
    codec: str,
    *,
    count: int = COUNT,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
    format: str | None = None,
    pixel_format: str = "yuv420p",
    size_hw: tuple[int, int] = (HEIGHT, WIDTH),
    times: Sequence[int] | None = None,
    time_base: Fraction = Fraction(1, 25),
    change: Callable[[Any], object] | None = None,
    pictures: Sequence[Pixels] | None = None,
) -> Path:
    """Encode ``count`` numbered pictures, or these in RGB. ``times``: when each is shown, in ``time_base``."""
    if pictures is None:
        pictures = [picture(number, size_hw) for number in range(count)]
    with _usual_scheduling(), av.open(str(path), "w", format=format, options=container_options or {}) as container:
        stream: Any = container.add_stream(codec, rate=25, options={**_QUIET.get(codec, {}), **(options or {})})
        stream.height, stream.width, stream.pix_fmt = *pictures[0].shape[:2], pixel_format
        stream.codec_context.time_base = stream.time_base = time_base
        if change is not None:
            change(stream)
        for number, pixels in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame = frame.reformat(format=pixel_format)
            frame.pts = times[number] if times else number
            frame.time_base = time_base
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def turn(path: Path, source: Path, matrix: tuple[int, int, int, int]) -> Path:
    """A copy of an MP4 whose track is displayed with the matrix (a, b, c, d)."""
    data = bytearray(source.read_bytes())
    a, b, c, d = (value * 65536 for value in matrix)
    # Version 0 of the box: 4 bytes of version, 20 of times and numbers, 16 of layer and volume, then the matrix.
    struct.pack_into(">9i", data, data.find(b"tkhd") + 4 + 4 + 20 + 16, a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return path


def begin_at(path: Path, source: Path, frame: int) -> Path:
    """The same packets in an MP4 whose edit list begins at a frame: those before it are there to be decoded only."""
    with av.open(str(source)) as container:
        times = sorted(packet.pts for packet in container.demux(video=0) if packet.size and packet.pts is not None)
    with av.open(str(source)) as container, av.open(str(path), "w", format="mp4") as out:
        stream = out.add_stream_from_template(container.streams.video[0])
        for packet in container.demux(video=0):
            if packet.size:
                packet.pts, packet.dts = packet.pts - times[frame], packet.dts - times[frame]
                packet.stream = stream
                out.mux(packet)
    return path


def add_sound(path: Path, source: Path, codecs: Sequence[str], *, rate: int = 48000, begin_s: float = 0.0) -> Path:
    """A copy with a track of a rising tone for each codec; ``begin_s`` is when the sound begins."""
    with av.open(str(source)) as container, av.open(str(path), "w") as out:
        pictures = container.streams.video[0]
        into = out.add_stream_from_template(pictures)
        tracks: list[Any] = [out.add_stream(codec, rate=rate, layout="stereo") for codec in codecs]
        packets = [packet for packet in container.demux(pictures) if packet.size]
        for packet in packets:
            packet.stream = into
        seconds = float(max(packet.pts + packet.duration for packet in packets) * (pictures.time_base or 0)) - begin_s
        for track in tracks:
            packets += _tone(track, rate, begin_s, seconds)
        for packet in sorted(packets, key=lambda one: one.dts * one.time_base):
            out.mux(packet)
    return path


def _tone(track: Any, rate: int, begin_s: float, seconds: float) -> list[Any]:
    at_s = np.arange(round(rate * seconds)) / rate
    tone = (8000 * np.sin(2 * np.pi * (200 + 100 * at_s) * at_s)).astype(np.int16)
    sound = av.AudioFrame.from_ndarray(np.repeat(tone, 2)[None], format="s16", layout="stereo")
    sound.sample_rate, sound.pts, sound.time_base = rate, round(begin_s * rate), Fraction(1, rate)
    context = track.codec_context
    pieces = av.AudioResampler(
        format=context.format.name, layout="stereo", rate=rate, frame_size=context.frame_size or 1024
    )
    frames = [*pieces.resample(sound), *pieces.resample(None), None]
    return [packet for frame in frames for packet in track.encode(frame)]


def sound_of(path: Path, track: int = 0) -> list[tuple[bytes, float]]:
    """The packets of a track of sound, and when each begins, in seconds after the first frame is shown."""
    with av.open(str(path)) as container:
        began_s = min(packet.pts * packet.time_base for packet in container.demux(video=0) if packet.size)
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(audio=track) if packet.size]
        return [(bytes(packet), float(packet.pts * packet.time_base - began_s)) for packet in packets]


def every_frame(path: Path) -> list[Any]:
    """All frames by one plain decoding from the start: what chosen frames must equal."""
    with av.open(str(path)) as container:
        return list(container.decode(video=0))
