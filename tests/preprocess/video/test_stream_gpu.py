"""Streams on a GPU made of host memory: frames, order, counts, what the CPU takes over, and what is held."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from clip_files import COUNT, number_in, write_video
from definitions import AS_IT_IS, in_levels
from fuzz_streams import DEFINITION, LIMITS, SAMPLINGS, damaged
from host_gpu import HostDevice, fake_cvcuda, view
from host_nvdec import Codec, HostNvdec
from stream_files import CLASSIFY, ON_CPU, ON_GPU, assert_near, decoded, stream_of, write_refreshed, write_sizes

from onestream.preprocess import BadSample, CannotCompile, CenterCrop, Decode, Definition, Letterbox, Limits, Resize
from onestream.preprocess.video import ColorRule
from onestream.preprocess.video.streams.sampling import Sampling
from onestream.preprocess.video.streams.stream import StreamDecoder, StreamFormat

MODULES = ("backends.cvcuda", "video.gpu.nvdec", "video.gpu.stream_gpu")


class Decoders:
    """Makes decoders of one host GPU, and remembers what they logged."""

    def __init__(self, nvdec: HostNvdec, make: Callable[..., Any]) -> None:
        self.nvdec, self.device, self.log, self._make = nvdec, HostDevice(), [], make

    def __call__(self, definition: Definition, format: StreamFormat, **options: Any) -> Any:
        return self._make(definition, format, stream=self.device.stream(), log=self.log.append, **options)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Decoders]:
    """A GPU with NVDEC."""
    nvdec = HostNvdec()
    monkeypatch.setitem(sys.modules, "cvcuda", fake_cvcuda())
    monkeypatch.setitem(sys.modules, "PyNvVideoCodec", nvdec)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, f"onestream.preprocess.{name}", raising=False)
    from onestream.preprocess.video.gpu.stream_gpu import GpuStreamDecoder

    yield Decoders(nvdec, GpuStreamDecoder)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, f"onestream.preprocess.{name}", raising=False)


def pixels(frame: Any) -> np.ndarray:
    """Of a frame from either decoder, on the host."""
    return frame.pixels if isinstance(frame.pixels, np.ndarray) else view(frame.pixels)[0]


def facts(frames: list[Any]) -> list[tuple[Any, ...]]:
    return [(frame.index, frame.pts, frame.pts_seconds, frame.size_hw, frame.orientation) for frame in frames]


def assert_same(
    gpu: Decoders, path: Path, definition: Definition = AS_IT_IS, *, first: int = 0, exact: bool = False, **options: Any
) -> Any:
    """The frames of both decoders agree, ``exact`` in every bit, from this packet on; returns the GPU's decoder."""
    format, packets = stream_of(path)
    reference, decoder = StreamDecoder(definition, format, **options), gpu(definition, format, **options)
    expected, found = decoded(reference, packets[first:]), decoded(decoder, packets[first:])
    assert found
    assert facts(found) == facts(expected)
    for one, other in zip(found, expected, strict=True):
        assert_near(pixels(one), pixels(other), "nvdec")
        assert not exact or np.array_equal(pixels(one), pixels(other))
    assert (decoder.concealed, decoder.unshown) == (reference.concealed, reference.unshown)
    assert decoder.done
    return decoder


@pytest.mark.parametrize("kind", ON_GPU)
def test_frames_are_those_of_the_cpu(gpu: Decoders, videos: dict[str, Path], kind: str) -> None:
    for definition in (AS_IT_IS, CLASSIFY):
        decoder = assert_same(gpu, videos[kind], definition)
        assert decoder.on_cpu is None
    assert gpu.nvdec.made == 2
    assert gpu.log == []


@pytest.mark.parametrize("kind", ON_CPU)
def test_other_codecs_stay_on_the_cpu(gpu: Decoders, videos: dict[str, Path], kind: str) -> None:
    assert_same(gpu, videos[kind], CLASSIFY, exact=True)
    assert gpu.nvdec.made == 0
    codec = stream_of(videos[kind])[0].codec
    assert gpu.log == [f"a stream is decoded on the CPU: {codec} is not decoded on a GPU"]


def test_joined_clips_keep_every_frame(gpu: Decoders, videos: dict[str, Path], tmp_path: Path) -> None:
    """The second begins with the clock of the first, and the third in another size."""
    other = write_video(tmp_path / "other.ts", "libx264", count=9, size_hw=(64, 160), options={"g": "12"})
    joined = tmp_path / "joined.ts"
    joined.write_bytes(2 * videos["h264-ts"].read_bytes() + other.read_bytes())
    assert assert_same(gpu, joined).decoded == 2 * COUNT + 9


def test_hdr_is_mapped_on_the_cpu(gpu: Decoders, hdr_video: Path) -> None:
    assert assert_same(gpu, hdr_video).on_cpu is None
    mapped = assert_same(gpu, hdr_video, color=ColorRule(transfer="sdr"))
    assert mapped.on_cpu == "HDR is mapped to SDR on the CPU"
    assert str(mapped.colors).endswith("pq (mapped)")


@pytest.mark.parametrize(
    "sampling",
    [Sampling(stride=3), Sampling(fps=7.0), Sampling(start_frame=5, end_frame=21), Sampling(fps=10.0, num_frames=6)],
)
@pytest.mark.parametrize("kind", ["h264", "hevc", "vp9"])
def test_sampling_is_that_of_the_cpu(gpu: Decoders, videos: dict[str, Path], kind: str, sampling: Sampling) -> None:
    """By time a frame is taken only when its successor comes, and its memory in the decoder is another's by then."""
    assert_same(gpu, videos[kind], sampling=sampling, exact=True)


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv444p", "yuv420p10le", "yuv444p10le"])
def test_depths_chroma_and_odd_sizes(gpu: Decoders, tmp_path: Path, pixel_format: str) -> None:
    codec, size_hw = ("libx265", (96, 128)) if "10" in pixel_format else ("libvpx-vp9", (95, 127))
    path = write_video(tmp_path / "v.mkv", codec, count=6, pixel_format=pixel_format, size_hw=size_hw)
    assert assert_same(gpu, path).on_cpu is None


def test_gray_and_bars_are_made_on_the_gpu(gpu: Decoders, videos: dict[str, Path]) -> None:
    gray = in_levels(Resize(mode="shorter", size=50), CenterCrop(size=(70, 40)), color="gray")
    format, packets = stream_of(videos["h264"])
    (found, *_), (expected, *_) = (decoded(make(gray, format), packets) for make in (gpu, StreamDecoder))
    assert pixels(found).shape == pixels(expected).shape == (70, 40, 1)
    assert (pixels(found)[:9] == pixels(expected)[:9]).all()
    assert np.abs(pixels(found).astype(int) - pixels(expected)).mean() < 1


def test_bgr_is_rgb_with_its_channels_reversed(gpu: Decoders, videos: dict[str, Path]) -> None:
    format, packets = stream_of(videos["h264"])
    for geometry in (Letterbox(size=(80, 64)), CenterCrop(size=(30, 50))):
        bgr, rgb = (decoded(gpu(in_levels(geometry, color=color), format), packets) for color in ("bgr", "rgb"))
        for one, other in zip(bgr, rgb, strict=True):
            assert not isinstance(one.pixels, np.ndarray)
            np.testing.assert_array_equal(pixels(one), pixels(other)[..., ::-1])
            assert (pixels(one) != pixels(other)).any()


@pytest.mark.parametrize("filter", ["bicubic", "lanczos"])
def test_filters_of_pillows_bits_are_the_cpus(gpu: Decoders, videos: dict[str, Path], filter: Any) -> None:
    sharp = Definition(operations=(Decode(), Resize(mode="shorter", size=50, filter=filter), CenterCrop(size=(40, 40))))
    assert assert_same(gpu, videos["h264"], sharp, exact=True).decoded == COUNT


@pytest.mark.parametrize(
    ("kind", "fault", "reason"),
    [
        ("av1", {"lacks": {Codec.AV1}}, "does not decode av1 with 8 bit as NV12"),
        # Such as a stream that is cropped at its left, which PyNvVideoCodec does not do.
        ("hevc", {"crops_left": 2}, "differs from FFmpeg's in Y"),
        # Errors before the first surface cost nothing.
        ("h264", {"fails_at": 1}, "NVDEC refuses it: NVDEC : an error"),
        ("h264", {"fails_at": 3}, "NVDEC refuses it: NVDEC : an error"),
        ("h264", {"shows_nothing": True}, "shows nothing of 25 packets"),
        ("yuv422p", {}, "yuv422p"),
        ("interlaced", {}, "deinterlace"),
    ],
)
def test_what_a_gpu_cannot_decode_is_complete_and_exact_by_the_cpu(
    gpu: Decoders, videos: dict[str, Path], tmp_path: Path, kind: str, fault: dict[str, Any], reason: str
) -> None:
    written: dict[str, dict[str, Any]] = {
        "yuv422p": {"pixel_format": "yuv422p"},
        "interlaced": {"options": {"x264-params": "log-level=none:tff=1"}},
    }
    path = videos.get(kind) or write_video(tmp_path / "v.mp4", "libx264", count=6, **written[kind])
    for name, value in fault.items():
        setattr(gpu.nvdec, name, value)
    decoder = assert_same(gpu, path)
    assert reason in decoder.on_cpu
    assert gpu.log == [f"a stream is decoded on the CPU: {decoder.on_cpu}"]
    assert gpu.nvdec.alive == 0
    if kind == "av1":
        assert gpu.nvdec.made == 0


def test_an_error_within_a_stream_costs_frames_up_to_the_next_keyframe(gpu: Decoders, videos: dict[str, Path]) -> None:
    gpu.nvdec.fails_at = 15
    format, packets = stream_of(videos["h264"])
    assert [at for at, packet in enumerate(packets) if packet.is_key] == [0, 12, 24, 36]
    decoder = gpu(AS_IT_IS, format)
    frames = decoded(decoder, packets)
    # What NVDEC showed, and all from the next keyframe on.
    shown = [number_in(pixels(frame)) for frame in frames]
    assert shown == [*range(shown.index(24)), *range(24, COUNT)]
    assert decoder.concealed == COUNT - len(frames) > 0
    assert "an error" in decoder.on_cpu


def test_a_stream_without_keyframes_is_the_cpus(gpu: Decoders, tmp_path: Path) -> None:
    assert assert_same(gpu, write_refreshed(tmp_path / "v.mp4"), first=5, exact=True).decoded > 10
    assert gpu.log == ["a stream is decoded on the CPU: it begins without a keyframe"]


@pytest.mark.parametrize("kind", ["h264", "h264-open-gop", "hevc", "av1", "vp9"])
def test_a_joined_stream_begins_with_its_next_keyframe(gpu: Decoders, videos: dict[str, Path], kind: str) -> None:
    decoder = assert_same(gpu, videos[kind], first=5, exact=True)
    assert decoder.concealed == 0
    assert decoder.on_cpu is None


@pytest.mark.parametrize("kind", ["h264", "hevc", "vp9"])
def test_pictures_that_never_come_are_counted(gpu: Decoders, videos: dict[str, Path], kind: str) -> None:
    """A packet of noise within the stream: NVDEC says nothing, and shows nothing."""
    format, packets = stream_of(videos[kind])
    noise = np.random.default_rng(3).integers(0, 256, 300, np.uint8).tobytes()
    packets[16] = replace(packets[16], data=noise)
    decoder = gpu(AS_IT_IS, format)
    frames = decoded(decoder, packets)
    assert decoder.decoded == len(frames) >= COUNT - 12
    assert decoder.concealed == COUNT - len(frames) >= 1
    assert [frame.pts for frame in frames] == sorted(frame.pts for frame in frames)


def test_a_picture_that_no_packet_has_is_not_shown(gpu: Decoders, videos: dict[str, Path]) -> None:
    gpu.nvdec.doubles_at = 9
    assert_same(gpu, videos["h264"])
    assert gpu.nvdec.doubles_at > 9


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["h264", "hevc", "vp9"])
def test_whatever_comes_only_ends_its_own_stream(gpu: Decoders, videos: dict[str, Path], kind: str) -> None:
    """Bits flipped, packets cut, dropped, repeated and exchanged, times changed."""
    format, packets = stream_of(videos[kind])
    chosen, frames = Random(5), 0
    for number in range(20):
        decoder = gpu(DEFINITION, format, sampling=SAMPLINGS[number % len(SAMPLINGS)], limits=LIMITS)
        with suppress(BadSample):
            for packet in [*damaged(packets, chosen), None]:
                for frame in decoder.feed(packet):
                    assert pixels(frame).shape == (64, 56, 3)
                    frames += 1
    assert frames > 200
    del decoder
    gc.collect()
    assert gpu.nvdec.alive == 0


def test_a_change_of_size_makes_a_new_decoder(gpu: Decoders, tmp_path: Path) -> None:
    parts = write_sizes(tmp_path)
    (tmp_path / "all.h264").write_bytes(b"".join(part.read_bytes() for part in parts))
    decoder = assert_same(gpu, tmp_path / "all.h264")
    assert gpu.nvdec.made == 3
    assert decoder.on_cpu is None
    assert decoder.size_hw == (96, 128)


def test_what_is_refused_allocates_nothing(gpu: Decoders, videos: dict[str, Path]) -> None:
    format, packets = stream_of(videos["h264"], width=0, height=0)
    twice = Definition(operations=(Decode(), CenterCrop(size=(40, 40)), Resize(mode="exact", size=(9, 9))))
    with pytest.raises(CannotCompile, match="one"):
        gpu(twice, format)
    decoder = gpu(AS_IT_IS, format, limits=Limits(max_pixels=96 * 128 - 1))
    with pytest.raises(BadSample, match="has 128x96"):
        decoded(decoder, packets)
    assert gpu.nvdec.made == 0
    assert decoder.feed(packets[1]) == []


def test_without_b_frames_no_picture_waits(gpu: Decoders, tmp_path: Path) -> None:
    path = write_video(tmp_path / "v.mp4", "libx264", options={"bf": "0", "tune": "zerolatency"})
    format, packets = stream_of(path)
    decoder = gpu(AS_IT_IS, format)
    assert [len(decoder.feed(packet)) for packet in packets] == [1] * COUNT
    assert decoder.feed(None) == []


def test_surfaces_and_decoders_are_freed(gpu: Decoders, videos: dict[str, Path]) -> None:
    format, packets = stream_of(videos["h264"])
    decoder = gpu(CLASSIFY, format)
    decoder.feed(packets[0])
    assert gpu.nvdec.alive == 1
    del decoder
    gc.collect()
    assert gpu.nvdec.alive == 0
    ended = gpu(CLASSIFY, format, sampling=Sampling(num_frames=3))
    assert len(decoded(ended, packets)) == 3
    assert gpu.nvdec.alive == 0


def test_frames_outlive_the_next_packets_and_keep_their_picture(gpu: Decoders, videos: dict[str, Path]) -> None:
    format, packets = stream_of(videos["h264"])
    frames = decoded(gpu(CLASSIFY, format, pictures=True), packets)
    plain = decoded(gpu(CLASSIFY, format), packets)
    assert [number_in(frame.picture()) for frame in frames] == list(range(COUNT))
    whole = decoded(StreamDecoder(CLASSIFY, format, pictures=True), packets)[7].planes()
    planes = frames[7].planes()
    assert np.array_equal(planes.y[:, : planes.size_hw[1]], whole.y[:, : planes.size_hw[1]])
    with pytest.raises(ValueError, match="keeps no pictures"):
        plain[0].planes()
    assert gpu.device.syncs > 0
