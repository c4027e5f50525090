"""Messages and events of video streams: what is packed comes back, and nothing else is understood."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onestream.wire import video

TIMES = st.none() | st.integers(-(2**62), 2**62)
PACKETS = st.builds(
    video.Packet,
    data=st.binary(max_size=40),
    pts=TIMES,
    dts=TIMES,
    duration=st.integers(0, 2**31),
    is_key=st.booleans(),
    is_discarded=st.booleans(),
)
MESSAGES = st.one_of(
    st.builds(
        video.Open,
        codec=st.text(max_size=12),
        width=st.integers(0, 2**20),
        height=st.integers(0, 2**20),
        time_base=st.fractions(min_value=Fraction(1, 10**9), max_value=10**6),
        mode=st.sampled_from(["block", "drop_oldest"]),
        results=st.integers(0, 1000),
        transpose=st.booleans(),
        flip_rows=st.booleans(),
        flip_columns=st.booleans(),
        fps=st.floats(0, 1e6),
        bitrate=st.integers(0, 2**40),
        matrix_tag=st.integers(0, 255),
        full_range=st.none() | st.booleans(),
        primaries_tag=st.integers(0, video.MAX_TAG),
        transfer_tag=st.integers(0, video.MAX_TAG),
        sample_aspect_ratio=st.builds(Fraction, st.integers(1, video.MAX_ASPECT), st.integers(1, video.MAX_ASPECT)),
        reorder_depth=st.none() | st.integers(0, 16),
        extradata=st.binary(max_size=60),
    ),
    st.builds(video.Packets, results=st.integers(0, 2**40), packets=st.lists(PACKETS, max_size=8).map(tuple)),
    st.builds(video.Credit, results=st.integers(0, 2**40)),
    st.just(video.Close()),
)


@given(MESSAGES)
def test_what_is_packed_comes_back(message: video.Message) -> None:
    assert video.unpack(video.pack(message)) == message
    # What a client does not say of its pictures has a default.
    opened = video.unpack(packed(OPEN))
    assert (opened.primaries_tag, opened.transfer_tag, opened.sample_aspect_ratio) == (2, 2, 1)


@given(MESSAGES, st.binary(max_size=200), st.data())
def test_damaged_messages_and_noise_are_refused_or_read_never_anything_else(
    message: video.Message, noise: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(video.pack(message))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    for form in (bytes(damaged), cut):
        with suppress(video.BadMessage):
            video.unpack(form)
    with suppress(video.BadMessage):
        assert video.unpack(video.pack(video.unpack(noise))) == video.unpack(noise)


def packed(header: object, payload: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text + payload


def carried(*packets: list[object], results: int = 0, payload: bytes = b"abc") -> bytes:
    return packed({"type": "packets", "packets": packets, "results": results}, payload)


OPEN = {"type": "open", "version": video.VERSION, "codec": "h264", "width": 1, "height": 1, "time_base": [1, 25]}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"ab", "begins with the length"),
        (struct.pack("<I", 99) + b"{}", "declares 99 bytes"),
        (packed({"type": "hello"}), "'hello' is none of open"),
        (packed([1]), "cannot be read"),
        (packed({"type": "credit", "results": -1}), "results must be a whole number"),
        (packed({"type": "credit", "results": True}), "results must be a whole number"),
        (carried(results=-1, payload=b""), "results must be a whole number"),
        (carried([5, 0, 0, 1, 1]), "declare 5 bytes; the message carries 3"),
        (carried(), "declare 0 bytes; the message carries 3"),
        (carried([0, 1.5, 0, 1, 1]), "pts must be a whole number"),
        *(
            (packed(OPEN | changed), reason)
            for changed, reason in (
                ({"version": 9}, "speaks version 9"),
                ({"full_range": "yes"}, "full_range must be true, false or nothing, got 'yes'"),
                ({"mode": "fast"}, "'fast' is none of block"),
                ({"primaries_tag": 256}, "primaries_tag must be at most 255"),
                ({"transfer_tag": -1}, "transfer_tag must be a whole number"),
                ({"sample_aspect_ratio": [0, 1]}, "two numbers from 1 to 65535"),
                ({"sample_aspect_ratio": [1, 65536]}, "two numbers from 1 to 65535"),
                ({"sample_aspect_ratio": [1]}, "two numbers from 1 to 65535"),
                ({"sample_aspect_ratio": 1}, "cannot be read: TypeError"),
                ({"time_base": [1, 0]}, "cannot be read: ZeroDivisionError"),
            )
        ),
    ],
)
def test_refusals_say_what_was_seen(data: bytes, reason: str) -> None:
    with pytest.raises(video.BadMessage, match=reason):
        video.unpack(data)


def test_events_come_back_of_older_and_newer_servers_too() -> None:
    event = video.Event(type="results", decoded=3, dropped=1, frames=[{"index": 2, "pts": None, "pts_seconds": 0.5}])
    assert video.Event.from_json(event.to_json()) == event
    with pytest.raises(video.BadMessage):
        video.Event.from_json(b'{"what": 1}')
    assert video.Event.from_json(b'{"type": "opened", "fields": {}}').color is None
    color = {"matrix": "bt601", "range": "full", "matrix_from": "assumed", "range_from": "file"}
    newer = {"type": "consumed", "decoded": 4, "color": color, "what_comes_later": 1}
    assert video.Event.from_json(json.dumps(newer)) == video.Event(type="consumed", decoded=4, color=color)
