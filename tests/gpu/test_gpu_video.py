"""NVDEC on a GPU: surfaces are FFmpeg's in every bit, in the order of display; damage, joins and memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clip_files import number_in, write_video
from gpu_files import downloaded
from test_gpu_memory import assert_flat, free_mib

from onestream.preprocess import Definition
from onestream.preprocess.cuda.device import Device, DeviceArray
from onestream.preprocess.operations import Decode, Output
from onestream.preprocess.video.common.tolerances import tolerance
from onestream.preprocess.video.streams.stream import StreamDecoder, StreamFormat
from onestream.wire.video import Packet

FRAMES = 48
SIZE = (180, 320)
WHOLE = Definition(operations=(Decode(), Output(layout="NHWC", dtype="uint8")))
KINDS: dict[str, tuple[str, str, dict[str, str], str]] = {
    "h264": ("libx264", ".mp4", {"g": "20", "bf": "3"}, "yuv420p"),
    "h264, no B-frames": ("libx264", ".mp4", {"g": "20", "bf": "0"}, "yuv420p"),
    "h264, open groups": (
        "libx264", ".mkv", {"x264-params": "log-level=none:open-gop=1:keyint=20:bframes=3"}, "yuv420p",
    ),
    "h264, Annex B": ("libx264", ".h264", {"g": "20", "bf": "2"}, "yuv420p"),
    "hevc": ("libx265", ".mp4", {"x265-params": "log-level=none:keyint=20"}, "yuv420p"),
    "hevc, 10 bit": ("libx265", ".mp4", {"x265-params": "log-level=none:keyint=20"}, "yuv420p10le"),
    "av1": ("libsvtav1", ".mp4", {"g": "20", "preset": "12"}, "yuv420p"),
    "vp9": ("libvpx-vp9", ".webm", {"g": "20", "cpu-used": "8"}, "yuv420p"),
}  # fmt: skip
Streams = dict[str, tuple[StreamFormat, list[Packet]]]
Make = Callable[..., Any]


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Streams:
    """Packets of one video of each kind."""
    folder, found = tmp_path_factory.mktemp("videos"), {}
    for kind, (codec, suffix, options, pixel_format) in KINDS.items():
        path = folder / f"{kind}{suffix}"
        write_video(path, codec, count=FRAMES, options=options, pixel_format=pixel_format, size_hw=SIZE)
        found[kind] = packets_of(path)
    return found


def packets_of(path: Path) -> tuple[StreamFormat, list[Packet]]:
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        format = StreamFormat(
            codec=context.codec.canonical_name, extradata=context.extradata or b"", time_base=stream.time_base,
            width=context.width, height=context.height,
        )  # fmt: skip
        packets = [
            Packet(bytes(one), one.pts, one.dts, one.duration or 0, one.is_keyframe)
            for one in container.demux(stream)
            if one.size
        ]
    return format, packets


@pytest.fixture
def decoder(device: Device) -> Make:
    """Makes a decoder on the GPU."""
    from onestream.preprocess.video.gpu.stream_gpu import GpuStreamDecoder

    return lambda definition, format, **options: GpuStreamDecoder(definition, format, stream=device.stream(), **options)


def decoded(decoder: Any, packets: list[Packet]) -> list[Any]:
    return [frame for packet in [*packets, None] for frame in decoder.feed(packet)]


def lacks(gpu: Any, kind: str, record: Any) -> bool:
    """Whether this GPU has no decoder for a codec, as older ones have none for AV1; noted in the table."""
    if gpu.on_cpu is None or "this GPU does not decode" not in gpu.on_cpu:
        return False
    record(f"video, {kind}", gpu.on_cpu)
    return True


def on_host(frames: list[Any], device: Device) -> list[np.ndarray]:
    """The pixels of frames from the GPU; waits once."""
    assert all(isinstance(frame.pixels, DeviceArray) for frame in frames), "FFmpeg decoded it"
    return [pixels[0] for pixels in downloaded([frame.pixels for frame in frames], device.stream())]


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_those_of_the_cpu(
    kind: str, streams: Streams, decoder: Make, definition: Definition, device: Device, record: Any
) -> None:
    format, packets = streams[kind]
    for chosen, other in ((WHOLE, "nvdec"), (definition, "nvdec-resized")):
        gpu = decoder(chosen, format)
        frames, expected = decoded(gpu, packets), decoded(StreamDecoder(chosen, format), packets)
        if lacks(gpu, kind, record):
            return
        assert gpu.on_cpu is None
        assert [(one.index, one.pts) for one in frames] == [(one.index, one.pts) for one in expected]
        assert (gpu.decoded, gpu.concealed, gpu.unshown) == (FRAMES, 0, 0)
        differences = [
            np.abs(pixels.astype(int) - one.pixels)
            for pixels, one in zip(on_host(frames, device), expected, strict=True)
        ]
        allowed = tolerance("nvdec")
        largest, mean = max(int(one.max()) for one in differences), float(np.mean([one.mean() for one in differences]))
        record(f"video, {kind}, {other}: largest difference, levels", largest, f"<= {allowed.max_level}")
        record(f"video, {kind}, {other}: mean difference, levels", mean, f"<= {allowed.mean_level}")
        assert largest <= allowed.max_level
        assert mean <= allowed.mean_level


@pytest.mark.parametrize("kind", KINDS)
def test_a_joined_stream_begins_with_the_next_keyframe(
    kind: str, streams: Streams, decoder: Make, device: Device, record: Any
) -> None:
    format, packets = streams[kind]
    gpu, cpu = decoder(WHOLE, format), StreamDecoder(WHOLE, format)
    frames, expected = decoded(gpu, packets[5:]), decoded(cpu, packets[5:])
    if lacks(gpu, kind, record):
        return
    assert gpu.on_cpu is None
    assert [one.pts for one in frames] == [one.pts for one in expected]
    assert all(
        np.array_equal(pixels, one.pixels) for pixels, one in zip(on_host(frames, device), expected, strict=True)
    )
    assert (gpu.unshown, gpu.concealed) == (cpu.unshown, 0)


@pytest.mark.parametrize("kind", ["h264", "hevc", "av1", "vp9"])
def test_damage_does_not_end_a_stream(kind: str, streams: Streams, decoder: Make, device: Device, record: Any) -> None:
    """Noise in packets and packets that are gone; from the last keyframe on all is whole again."""
    format, packets = streams[kind]
    expected = {one.pts: one for one in decoded(StreamDecoder(WHOLE, format), packets)}
    last = [at for at, packet in enumerate(packets) if packet.is_key][-1]
    chosen = random.Random(4)
    sent = []
    for at, packet in enumerate(packets):
        if 3 < at < last - 4 and at % 7 == 0:
            continue
        if 3 < at < last - 4 and at % 5 == 0:
            data = bytearray(packet.data)
            for _ in range(20):
                data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
            packet = replace(packet, data=bytes(data))
        sent.append(packet)
    gpu = decoder(WHOLE, format)
    frames = decoded(gpu, sent)
    record(f"video, {kind}, damaged: frames of {len(sent)} packets", len(frames))
    record(f"video, {kind}, damaged: lost, or seen by FFmpeg", gpu.concealed)
    record(f"video, {kind}, damaged: who decodes at the end", gpu.on_cpu or "NVDEC")
    times = [one.pts for one in frames]
    assert times == sorted(set(times))
    # Damage may reorder frames, whose pts are then made ascending; source_pts is the packet's own.
    assert {one.source_pts for one in frames} <= set(expected)
    key = packets[last].pts
    again = [one for one in frames if one.pts >= key]
    assert [one.pts for one in again] == [pts for pts in expected if pts >= key]
    if gpu.on_cpu is None:
        for pixels, one in zip(on_host(again, device), again, strict=True):
            assert np.array_equal(pixels, expected[one.pts].pixels)


def test_a_change_of_size_is_followed(decoder: Make, tmp_path: Path, device: Device) -> None:
    parts = []
    for number, size in enumerate([(180, 320), (240, 400), (180, 320)]):
        path = write_video(tmp_path / f"{number}.h264", "libx264", count=12, size_hw=size, options={"bf": "2"})
        parts.append(path.read_bytes())
    (tmp_path / "all.h264").write_bytes(b"".join(parts))
    format, packets = packets_of(tmp_path / "all.h264")
    gpu = decoder(WHOLE, format)
    frames = decoded(gpu, packets)
    assert gpu.on_cpu is None
    assert [one.size_hw for one in frames] == [(180, 320)] * 12 + [(240, 400)] * 12 + [(180, 320)] * 12
    assert [number_in(pixels) for pixels in on_host(frames, device)] == [*range(12)] * 3


def test_memory_is_flat_over_many_streams(
    streams: Streams, decoder: Make, definition: Definition, device: Device, record: Any
) -> None:
    """Each ends early, in the middle, or runs to its end."""
    free: list[float] = []
    kinds = [kind for kind in KINDS if kind != "av1"]
    for number in range(80):
        format, packets = streams[kinds[number % len(kinds)]]
        gpu = decoder(definition, format)
        for packet in packets[: 10 + number % 20]:
            gpu.feed(packet)
        if number % 3 == 0:
            gpu.feed(None)
        del gpu
        if number % 8 == 7:
            free.append(free_mib(device))
    assert_flat(free, record, "video: GPU memory over the second half of 80 streams")
