"""Streams decode to the pixels that clips have, whatever the codec, its packaging and the sampling."""

from __future__ import annotations

from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from clip_files import COUNT, begin_at, number_in, turn, write_video
from definitions import AS_IT_IS
from stream_files import CLASSIFY, ON_GPU, decoded, pixels_of, played, stream_of, write_sizes

from onestream.preprocess import BadSample, Limits
from onestream.preprocess.video import Clip, ClipMaker, VideoFile, choose_frames
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.streams.sampling import Sampling
from onestream.preprocess.video.streams.stream import StreamDecoder
from onestream.wire.video import Packet


def assert_equals_clip(path: Path, **said: Any) -> None:
    """Every frame of the stream is the file's, in every bit."""
    format, packets = stream_of(path, **said)
    decoder = StreamDecoder(CLASSIFY, format)
    frames = decoded(decoder, packets)
    expected = ClipMaker(CLASSIFY.pixels(), Clip()).make(path)
    assert [frame.index for frame in frames] == list(range(len(expected)))
    np.testing.assert_array_equal(pixels_of(frames), expected)
    assert (decoder.decoded, decoder.concealed, decoder.unshown) == (len(expected), 0, 0)


def assert_samples_clip(path: Path, sampling: Sampling) -> StreamDecoder:
    """The frames that the sampling takes of the stream are those that a clip takes of the file, in every bit."""
    format, packets = stream_of(path)
    clip = Clip(**asdict(sampling))
    with VideoFile(path) as video:
        chosen = [number for number in dict.fromkeys(choose_frames(clip, video.index.timeline)) if number is not None]
    expected = ClipMaker(CLASSIFY.pixels(), Clip(frames=tuple(chosen))).make(path)
    decoder = StreamDecoder(CLASSIFY, format, sampling=sampling)
    frames = decoded(decoder, packets)
    assert [frame.index for frame in frames] == chosen
    np.testing.assert_array_equal(pixels_of(frames), expected)
    return decoder


@pytest.mark.parametrize("kind", [*ON_GPU, "vp8", "mjpeg", "mpeg4"])
def test_a_stream_has_the_pixels_of_the_clip(videos: dict[str, Path], kind: str) -> None:
    assert_equals_clip(videos[kind])


@pytest.mark.parametrize(
    ("matrix", "orientation"),
    [
        ((0, 1, -1, 0), Orientation(transpose=True, flip_columns=True)),
        ((-1, 0, 0, -1), Orientation(flip_rows=True, flip_columns=True)),
        ((0, -1, 1, 0), Orientation(transpose=True, flip_rows=True)),
    ],
)
def test_frames_are_turned(videos: dict[str, Path], tmp_path: Path, matrix: tuple, orientation: Orientation) -> None:
    path = turn(tmp_path / "turned.mp4", videos["h264"], matrix)
    assert_equals_clip(path, orientation=orientation)
    format, packets = stream_of(path, orientation=orientation)
    frame = decoded(StreamDecoder(AS_IT_IS, format, pictures=True), packets)[7]
    assert np.array_equal(frame.picture(), frame.pixels)
    assert frame.size_hw == frame.pixels.shape[:2]


def test_a_turn_that_the_stream_itself_states_is_followed(tmp_path: Path) -> None:
    """H.264 can carry a display orientation message, which no container knows of."""
    plain = write_video(tmp_path / "v.mp4", "libx264", count=4)
    path = tmp_path / "turned.mp4"
    with av.open(str(plain)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        turned = "h264_metadata=display_orientation=insert:rotate=90"
        turning = av.BitStreamFilterContext(turned, source.streams.video[0])
        for packet in source.demux(video=0):
            for changed in turning.filter(packet if packet.size else None):
                changed.stream = stream
                target.mux(changed)
    with VideoFile(path) as video:
        _, frame = next(video.frames([0]))
        assert frame.rotation
    assert_equals_clip(path)


def test_the_picture_is_whole_and_kept_only_where_it_is_wanted(videos: dict[str, Path]) -> None:
    format, packets = stream_of(videos["h264"])
    whole = ClipMaker(AS_IT_IS, Clip(frames=(3,))).make(videos["h264"])[0]
    kept = decoded(StreamDecoder(CLASSIFY, format, pictures=True), packets)[3]
    assert np.array_equal(kept.picture(), whole)
    assert kept.planes().size_hw == whole.shape[:2]
    with pytest.raises(ValueError, match="make it with pictures=True"):
        decoded(StreamDecoder(CLASSIFY, format), packets)[3].picture()


@pytest.mark.parametrize("kind", ["h264", "hevc"])
def test_annex_b_is_decoded_like_its_packaged_form(videos: dict[str, Path], kind: str) -> None:
    format, packets = stream_of(videos[kind])
    assert format.extradata[0] == 1
    with av.open(str(videos[kind])) as container:
        to_annex_b = av.BitStreamFilterContext(f"{kind}_mp4toannexb", container.streams.video[0])
        bare = [packet for packet in container.demux(video=0) if packet.size]
        data = [bytes(changed) for packet in bare for changed in to_annex_b.filter(packet)]
    raw = [replace(packet, data=content) for packet, content in zip(packets, data, strict=True)]
    packaged = decoded(StreamDecoder(CLASSIFY, format), packets)
    found = decoded(StreamDecoder(CLASSIFY, replace(format, extradata=b"")), raw)
    np.testing.assert_array_equal(pixels_of(found), pixels_of(packaged))
    assert [frame.pts for frame in found] == [frame.pts for frame in packaged]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", ["h264", "hevc", "av1", "vp9", "mjpeg"])
def test_times_are_exact_and_in_order(videos: dict[str, Path], kind: str, threads: int) -> None:
    format, packets = stream_of(videos[kind])
    frames = decoded(StreamDecoder(CLASSIFY, format, threads=threads), packets)
    with VideoFile(videos[kind]) as video:
        assert [frame.pts for frame in frames] == video.index.timeline.pts.tolist()
    assert [frame.pts_seconds for frame in frames] == [n / 25 for n in range(COUNT)]


@pytest.mark.parametrize(
    "sampling",
    [Sampling(stride=3, start_frame=7, num_frames=4), Sampling(fps=60), Sampling(fps=Fraction(7, 2), end_frame=31)],
)
@pytest.mark.parametrize(
    "kind", ["h264", "h264-open-gop", "h264-ts", "h264-avi", "h264-raw", "hevc", "vp9", "mpeg4-avi"]
)
def test_sampling_takes_the_frames_of_the_clip(videos: dict[str, Path], kind: str, sampling: Sampling) -> None:
    assert_samples_clip(videos[kind], sampling)


def test_frames_that_nothing_needs_are_not_decoded(tmp_path: Path) -> None:
    # Three of four frames are no reference.
    layout = {"x264-params": "log-level=none:bframes=3:b-adapt=0:b-pyramid=0:scenecut=0:keyint=60"}
    path = write_video(tmp_path / "v.mp4", "libx264", options=layout)
    assert_equals_clip(path)
    for sampling in (Sampling(stride=5), Sampling(fps=5)):
        assert COUNT / 5 < assert_samples_clip(path, sampling).decoded <= COUNT / 2


def test_a_variable_rate_is_sampled_by_time(tmp_path: Path) -> None:
    # Three fast frames, a long one, and fast ones, in hundredths of a second.
    times = [0, 4, 8, 12, 52, 56, 60, 64, 99, 104]
    timed = {"count": 10, "times": times, "time_base": Fraction(1, 100), "options": {"bf": "3"}}
    path = write_video(tmp_path / "v.mkv", "libx264", **timed)
    assert_samples_clip(path, Sampling(fps=10))
    _, frames = played(*stream_of(path), sampling=Sampling(fps=10))
    # At 0, 100, 200 ms …; the frame that is shown from 120 to 520 ms comes once.
    assert [frame.index for frame in frames] == [0, 2, 3, 6, 7, 8]
    assert [number_in(frame.pixels) for frame in frames] == [0, 2, 3, 6, 7, 8]
    assert [frame.pts_seconds for frame in frames] == [0, 0.08, 0.12, 0.6, 0.64, 0.99]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(stride=5), Sampling(fps=7.0), Sampling(start_frame=3)])
@pytest.mark.parametrize("kind", ["h264", "hevc", "mpeg4"])
def test_edit_lists_hide_frames(videos: dict[str, Path], tmp_path: Path, kind: str, sampling: Sampling) -> None:
    path = begin_at(tmp_path / "cut.mp4", videos[kind], 7)
    format, packets = stream_of(path)
    assert [packet.is_discarded for packet in packets].count(True) == 7
    assert_samples_clip(path, sampling)
    decoder, frames = played(format, packets)
    assert [number_in(frame.pixels) for frame in frames] == list(range(7, COUNT))
    assert (decoder.decoded, decoder.concealed, decoder.unshown) == (COUNT - 7, 0, 0)


def test_nothing_is_decoded_after_the_last_frame(videos: dict[str, Path]) -> None:
    format, packets = stream_of(videos["h264"])
    decoder = StreamDecoder(CLASSIFY, format, sampling=Sampling(num_frames=3))
    assert [frame.index for frame in decoded(decoder, packets)] == [0, 1, 2]
    assert decoder.done
    assert decoder.decoded < 8


def test_b_frames_whose_depth_is_not_stated_come_in_order(videos: dict[str, Path]) -> None:
    """Many cameras and some encoders leave the depth out of the header."""
    format, packets = stream_of(videos["h264"])
    silent = replace(format, extradata=without_usability_information(format.extradata))
    expected = decoded(StreamDecoder(CLASSIFY, format), packets)
    for depth in (None, 2):
        found = decoded(StreamDecoder(CLASSIFY, replace(silent, reorder_depth=depth)), packets)
        assert [frame.pts for frame in found] == [frame.pts for frame in expected]
        np.testing.assert_array_equal(pixels_of(found), pixels_of(expected))
    # What is found out already need not be waited for.
    late, early = (
        decoded(StreamDecoder(CLASSIFY, replace(silent, reorder_depth=depth)), packets[:6], at_end=False)
        for depth in (None, 2)
    )
    assert len(late) < len(early)


def test_keyframes_that_the_decoder_holds_back_keep_their_times(tmp_path: Path) -> None:
    """Without a stated depth H.264 is held back for as many pictures as its level allows, here several groups."""
    format, packets = stream_of(write_video(tmp_path / "v.mp4", "libx264", options={"g": "3", "bf": "1"}))
    assert sum(packet.is_key for packet in packets[:9]) == 3
    decoder = StreamDecoder(AS_IT_IS, replace(format, extradata=without_usability_information(format.extradata)))
    assert decoded(decoder, packets[:6], at_end=False) == []
    frames = decoded(decoder, packets[6:])
    assert [frame.pts for frame in frames] == sorted(packet.pts for packet in packets)
    assert decoder.unshown == 0


def test_a_change_of_size_is_planned_anew(tmp_path: Path) -> None:
    parts = write_sizes(tmp_path)
    format, _ = stream_of(parts[0])
    packets = [packet for part in parts for packet in stream_of(part)[1]]
    decoder = StreamDecoder(CLASSIFY, format, pictures=True)
    frames = decoded(decoder, packets)
    expected = np.concatenate([ClipMaker(CLASSIFY.pixels(), Clip()).make(part) for part in parts])
    assert [frame.size_hw for frame in frames] == [(96, 128)] * 6 + [(160, 144)] * 6 + [(96, 128)] * 6
    np.testing.assert_array_equal(pixels_of(frames), expected)
    assert decoder.size_hw == (96, 128)


@pytest.mark.parametrize("kind", ["h264", "hevc", "av1", "vp8", "vp9", "mjpeg", "mpeg4"])
def test_large_frames_are_refused_whatever_was_declared(videos: dict[str, Path], kind: str) -> None:
    format, packets = stream_of(videos[kind])
    said = "frame 0: has 128x96 = 12288 pixels; at most 12287 are allowed"
    with pytest.raises(BadSample, match=said):
        StreamDecoder(CLASSIFY, format, limits=Limits(max_pixels=12287))
    decoder = StreamDecoder(CLASSIFY, replace(format, width=0, height=0), limits=Limits(max_pixels=12287))
    with pytest.raises(BadSample, match=said):
        decoded(decoder, packets)
    assert decoded(decoder, packets) == []
    assert len(decoded(StreamDecoder(CLASSIFY, format, limits=Limits(max_pixels=12288)), packets)) == COUNT


@pytest.mark.parametrize(
    ("codec", "suffix"),
    [
        *(("libx264", ".mp4"), ("libvpx-vp9", ".webm"), ("libvpx", ".webm")),
        *(("mjpeg", ".mkv"), ("libsvtav1", ".mp4"), ("libx265", ".mp4")),
    ],
)
def test_very_large_frames_are_refused_before_they_are_decoded(tmp_path: Path, codec: str, suffix: str) -> None:
    pixel_format = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    large = {"count": 3, "size_hw": (400, 480), "pixel_format": pixel_format, "options": {"threads": "1"}}
    format, packets = stream_of(write_video(tmp_path / f"v{suffix}", codec, **large), width=0, height=0)
    with pytest.raises(BadSample, match=r"frame 0: (?!has 480x400 =).*at most 20000 pixels are allowed"):
        decoded(StreamDecoder(CLASSIFY, format, limits=Limits(max_pixels=20000)), packets)


def test_what_is_not_supported_is_named(videos: dict[str, Path], tmp_path: Path) -> None:
    format, packets = stream_of(videos["h264"])
    for changed, said in (
        ({"codec": "mpeg2video"}, "the stream is coded in mpeg2video; supported are h264, hevc, av1, vp8, vp9"),
        ({"codec": "libx264"}, "the stream is coded in libx264; supported are"),
        ({"time_base": Fraction(0)}, "the time base must be above 0"),
    ):
        with pytest.raises(BadSample, match=said):
            StreamDecoder(CLASSIFY, replace(format, **changed))
    with pytest.raises(ValueError, match="threads must be at least 1"):
        StreamDecoder(CLASSIFY, format, threads=0)
    rgb = stream_of(write_video(tmp_path / "v.mkv", "libx264rgb", count=3, pixel_format="rgb24"))
    with pytest.raises(BadSample, match="frame 0: has the pixel format gbrp; supported are yuv420p"):
        played(*rgb)
    assert played(format, [Packet(b"", 0, 0, 0, True)])[1] == []
    assert len(packets) == COUNT


def without_usability_information(avcc: bytes) -> bytes:
    """An avcC of x264 whose sequence parameter set has no VUI, which is its last part (H.264, 7.3.2.1.1)."""
    size = int.from_bytes(avcc[6:8], "big")
    parameters = avcc[8 : 8 + size].replace(b"\0\0\3", b"\0\0")
    assert parameters[1] >= 100, "a high profile, which states its chroma and depths"
    bits, at = "".join(f"{byte:08b}" for byte in parameters), 8 * 4
    # Before it there are Exp-Golomb numbers (#) and flags (.), of which the last says that the frame is cropped.
    for code in "####..####.##...":
        at += 1 if code == "." else 2 * (bits.index("1", at) - at) + 1
    assert bits[at - 1] == "0"
    kept = bits[:at] + "0" + "1"
    kept += "0" * (-len(kept) % 8)
    plain = int(kept, 2).to_bytes(len(kept) // 8, "big")
    assert b"\0\0\0" not in plain
    assert b"\0\0\1" not in plain
    return avcc[:6] + len(plain).to_bytes(2, "big") + plain + avcc[8 + size :]
