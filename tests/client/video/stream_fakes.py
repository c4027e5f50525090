"""Sources made of plain packets, what tests of streams do with results, and the command ``onestream stream``."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator
from fractions import Fraction

import typer
from fake_server import FakeServer
from typer.testing import CliRunner, Result

from onestream.cli.stream import stream
from onestream.client import OnestreamError
from onestream.client.video import PacketSource, Stream
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
) -> tuple[list[int], OnestreamError | None]:
    """The numbers of all frames, or of the first ``most``, and what ended the stream where it was an error."""
    numbers: list[int] = []

    async def in_loop() -> None:
        async with results:
            async for frame in results:
                numbers.append(frame.frame_index)
                if len(numbers) == most:
                    break

    try:
        if in_event_loop:
            asyncio.run(in_loop())
            return numbers, None
        with results:
            for frame in results:
                numbers.append(frame.frame_index)
                if len(numbers) == most:
                    break
    except OnestreamError as error:
        return numbers, error
    return numbers, None


def endless() -> PacketSource:
    return source(Packet(bytes(100), number, number, 1, True) for number in itertools.count())


def run(server: FakeServer, *arguments: object) -> Result:
    """``onestream stream`` with these arguments, in a wide terminal."""
    words = ["--url", server.url, *map(str, arguments)]
    return CliRunner().invoke(app, words, catch_exceptions=False, env={"COLUMNS": "200"})
