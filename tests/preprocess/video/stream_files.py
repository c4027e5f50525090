"""Packets of a video file as a client sends them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import av

from onestream.preprocess import Definition
from onestream.preprocess.moves import CenterCrop, Resize
from onestream.preprocess.operations import Decode, Normalize
from onestream.preprocess.video.streams.stream import StreamDecoder, StreamFormat, StreamFrame
from onestream.wire.video import Packet

CLASSIFY = Definition(
    operations=(
        Decode(),
        Resize(mode="shorter", size=72),
        CenterCrop(size=(64, 56)),
        Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    )
)


def stream_of(path: Path, **said: Any) -> tuple[StreamFormat, list[Packet]]:
    """What the file says of its video, with changes, and its packets."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        format = StreamFormat(
            codec=context.codec.canonical_name,
            extradata=context.extradata or b"",
            time_base=stream.time_base,
            width=context.width,
            height=context.height,
            fps=float(stream.average_rate or 0),
        )
        packets = [
            Packet(bytes(packet), packet.pts, packet.dts, packet.duration or 0, packet.is_keyframe, packet.is_discard)
            for packet in container.demux(stream)
            if packet.size
        ]
    return replace(format, **said), packets


def decoded(decoder: StreamDecoder, packets: Iterable[Packet], *, at_end: bool = True) -> list[StreamFrame]:
    """All frames of a stream."""
    sent = [*packets, None] if at_end else packets
    return [frame for packet in sent for frame in decoder.feed(packet)]
