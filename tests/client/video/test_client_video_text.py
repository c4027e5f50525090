"""Text in a stream's frames: what the client reads, prints and draws."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from clip_files import every_frame, write_video
from fake_server import Behaviour, FakeServer
from stream_fakes import collect, packets, run, source

from onestream.cli.stream import caption
from onestream.client import Client, Reading, UnexpectedResponse
from onestream.wire.box_style import color_of


def signs(number: int) -> list[bytes]:
    """Of every third frame none, else its number and a sign."""
    return [] if number % 3 == 2 else [b"frame %d" % number, "出口".encode()]


def texts(number: int) -> list[str]:
    return [line.decode() for line in signs(number)]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {"g": "10", "bf": "0", "crf": "10"}
    return write_video(
        tmp_path_factory.mktemp("clips") / "clip.mp4", "libx264", options=options, count=9, size_hw=(192, 256)
    )


def test_every_frame_has_its_text_none_too() -> None:
    with (
        FakeServer(Behaviour(lines=signs)) as server,
        Client(server.url) as client,
        client.stream(source(packets(9)), pipeline="read") as frames,
    ):
        results = list(frames)
    assert [result.frame_index for result in results] == list(range(9))
    for number, result in enumerate(results):
        assert isinstance(result.regions, Reading)
        assert result.found is result.regions
        assert result.regions.texts == tuple(texts(number))
        assert (result.regions.image_size, result.regions.model) == ((192, 256), "read_video")
        assert (result.detections, result.labels) == (None, ())
        fields = result.to_dict()
        assert (fields["texts"], fields["left_out"], fields["image_size"]) == (texts(number), 0, [192, 256])
        assert "model" not in fields
        assert "tensors" not in fields


def test_text_that_is_none_ends_the_stream() -> None:
    behaviour = Behaviour(lines=lambda number: [b"\xff"] if number == 4 else [])
    with FakeServer(behaviour) as server, Client(server.url) as client:
        numbers, error = collect(client.stream(source(packets(9))))
    assert isinstance(error, UnexpectedResponse)
    assert "no UTF-8" in str(error)
    assert numbers == list(range(4))


def test_the_command_prints_the_text_of_each_frame(clip: Path) -> None:
    with FakeServer(Behaviour(lines=signs)) as server:
        result = run(server, clip, "--json")
    *lines, _ = (json.loads(line) for line in result.stdout.splitlines())
    assert [line["texts"] for line in lines] == [texts(number) for number in range(9)]
    assert len(lines[0]["quads"]) == 2


def test_the_last_text_is_shown_while_the_stream_runs() -> None:
    behaviour = Behaviour(lines=lambda number: [b"EXIT", b"\x1b[31m"] if number == 0 else [])
    with FakeServer(behaviour) as server, Client(server.url) as client, client.stream(source(packets(2))) as frames:
        assert [caption(frame, top=1) for frame in frames] == ["EXIT / ?[31m", "no text"]


def test_the_copy_has_the_text_of_each_frame_beside_it(clip: Path, tmp_path: Path) -> None:
    with FakeServer(Behaviour(lines=signs)) as server:
        assert run(server, clip, "-o", tmp_path / "out.mp4").exit_code == 0
    drawn, plain = every_frame(tmp_path / "out.mp4"), every_frame(clip)
    assert len(drawn) == len(plain) == 9
    for number, (one, other) in enumerate(zip(drawn, plain, strict=True)):
        pixels, before = (frame.to_ndarray(format="rgb24").astype(int) for frame in (one, other))
        # Around the upper edge of the first line of text, which is three pixels thick.
        edge = np.median(pixels[34:37, 106:114], axis=(0, 1))
        is_drawn = np.abs(edge - color_of(0)).max() < 90
        assert is_drawn == bool(signs(number)), number
        # Outside of all quads and their texts.
        assert np.abs(pixels[140:, 215:] - before[140:, 215:]).mean() < 8
