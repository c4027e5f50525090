"""Packets of a video file as a client sends them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
from clip_files import write_video
from definitions import AS_IT_IS

from onestream.preprocess import CenterCrop, Decode, Definition, Normalize, Resize
from onestream.preprocess.video.common.tolerances import tolerance
from onestream.preprocess.video.streams.stream import StreamDecoder, StreamFormat, StreamFrame
from onestream.wire.video import Packet

ON_GPU = ("h264", "h264-open-gop", "h264-ts", "h264-avi", "h264-raw", "hevc", "av1", "vp9")
ON_CPU = ("vp8", "mjpeg", "mpeg4", "mpeg4-avi")
"""The kinds of ``videos`` that NVDEC decodes, and the others."""
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


def assert_near(seen: np.ndarray, expected: np.ndarray, row: str) -> None:
    """No farther apart than this row of the table of tolerances says."""
    difference, allowed = np.abs(seen.astype(int) - expected), tolerance(row)
    assert difference.max() <= allowed.max_level
    assert difference.mean() <= allowed.mean_level


def write_refreshed(path: Path) -> Path:
    """A video without keyframes but the first: some cameras refresh the picture column by column instead."""
    options = {"x264-params": "log-level=none:intra-refresh=1:keyint=12:bframes=0"}
    return write_video(path, "libx264", options=options)


def write_sizes(folder: Path) -> list[Path]:
    """Videos whose packets make one stream, the second of another size."""
    return [
        write_video(folder / f"{n}.h264", "libx264", count=6, size_hw=size_hw, options={"g": "6", "bf": "2"})
        for n, size_hw in enumerate([(96, 128), (160, 144), (96, 128)])
    ]


def decoded(decoder: StreamDecoder, packets: Iterable[Packet], *, at_end: bool = True) -> list[StreamFrame]:
    """All frames of a stream."""
    sent = [*packets, None] if at_end else packets
    return [frame for packet in sent for frame in decoder.feed(packet)]


def played(format: StreamFormat, packets: Iterable[Packet], **options: Any) -> tuple[StreamDecoder, list[StreamFrame]]:
    """A decoder that keeps frames as they are, and all of them."""
    decoder = StreamDecoder(AS_IT_IS, format, **options)
    return decoder, decoded(decoder, packets)


def pixels_of(frames: Iterable[Any]) -> np.ndarray:
    """Of all frames of one size."""
    return np.stack([frame.pixels for frame in frames])
