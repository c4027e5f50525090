"""Sources made of plain packets, what tests of streams do with results, and the command ``onestream stream``."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path

import typer
from fake_server import FakeServer
from rtsp_server import CameraProcess
from typer.testing import CliRunner, Result

from onestream.cli.annotate import AnnotatedVideo
from onestream.cli.stream.command import stream
from onestream.client import OnestreamError
from onestream.client.video import FrameResult, PacketSource, Sound, Source, Stream
from onestream.wire.clock import Clock
from onestream.wire.video import Open, Packet

app = typer.Typer()
app.command()(stream)
FORMAT = Open(codec="h264", width=64, height=48, time_base=Fraction(1, 25))


def packets(count: int, size: int = 1000) -> Iterator[Packet]:
    return (
        Packet(number.to_bytes(4, "big") * (size // 4), number, number, 1, number % 10 == 0) for number in range(count)
    )


def source(items: Iterable[Packet], *, live: bool = False) -> PacketSource:
    return PacketSource(FORMAT, items, live=live)


def collect(
    results: Stream, *, most: int | None = None, in_event_loop: bool = False
) -> tuple[list[FrameResult], OnestreamError | None]:
    """All frames, or the first ``most``, and what ended the stream where it was an error."""
    found: list[FrameResult] = []

    async def in_loop() -> None:
        async with results:
            async for frame in results:
                found.append(frame)
                if len(found) == most:
                    break

    try:
        if in_event_loop:
            asyncio.run(in_loop())
            return found, None
        with results:
            for frame in results:
                found.append(frame)
                if len(found) == most:
                    break
    except OnestreamError as error:
        return found, error
    return found, None


def across_a_restart(results: Stream, camera: CameraProcess, again: Callable[[], CameraProcess]) -> list[int]:
    """The numbers of frames before and the first one after a camera is killed, which is started again at once."""
    numbers: list[int] = []
    with ExitStack() as stack, results:
        for frame in results:
            numbers.append(frame.frame_index)
            if len(numbers) == 20:
                camera.kill()
                stack.enter_context(again())
            if frame.after_gap:
                break
    assert numbers == sorted(set(numbers))
    return numbers


def read(source: Source, sound: Sound | None = None) -> tuple[Open, list[Packet]]:
    """The format and all packets of a source; its sound is taken aside where it is asked for."""
    feed = source.connect()
    try:
        if sound is not None:
            feed.copy_sound(sound)
        return feed.format, list(feed.packets())
    finally:
        feed.close()


def annotated(path: Path, frames: Sequence[Packet], format: Open, **options: Sound) -> None:
    """Write a copy of these frames, of which each that is shown has a result, without a label."""
    video = AnnotatedVideo(path, lambda _frame: "", **options)
    for packet in frames:
        video.sent(packet)
    clock, shown, clip = Clock(1), [], []
    # As the server: in the order of display from key frame to key frame, by times that never go back.
    for packet in [*frames, Packet(b"", None, None, 0, True)]:
        if packet.is_key:
            shown += [clock.forward(pts, duration) for pts, duration in sorted(clip)]
            clip = []
        if packet.pts is not None and not packet.is_discarded:
            clip.append((packet.pts, packet.duration))
    for index, pts in enumerate(shown):
        video.show(FrameResult(index, pts, None, 1.0, 1.0, {}), format)
    video.close()


def endless() -> PacketSource:
    return source(Packet(bytes(100), number, number, 1, True) for number in itertools.count())


def run(server: FakeServer, *arguments: object) -> Result:
    """``onestream stream`` with these arguments, in a wide terminal."""
    words = ["--url", server.url, *map(str, arguments)]
    return CliRunner().invoke(app, words, catch_exceptions=False, env={"COLUMNS": "200"})
