"""Decoding chosen frames: the same pictures as one decoding from the start, whatever the codec and container."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from clip_files import COUNT, HEIGHT, WIDTH, every_frame, number_in, write_video
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_files import ON_CPU, ON_GPU, write_sizes

from onestream.preprocess import BadSample, Limits
from onestream.preprocess.video import ColorRule, VideoFile
from onestream.preprocess.video.common.color import planes_of, to_rgb


def numbers_of(video: VideoFile, wanted: list[int]) -> list[int]:
    """The numbers that are painted into the frames that come back."""
    return [number_in(to_rgb(planes_of(frame), ColorRule())) for _, frame in video.frames(wanted)]


@pytest.mark.parametrize("kind", [*ON_GPU, *ON_CPU])
def test_any_frames_equal_those_of_a_decoding_from_the_start(videos: dict[str, Path], kind: str) -> None:
    expected = [frame.to_ndarray() for frame in every_frame(videos[kind])]
    with VideoFile(videos[kind]) as video:
        assert len(video) == COUNT
        assert numbers_of(video, list(range(COUNT))) == list(range(COUNT))
        timeline = video.index.timeline
        assert set(np.diff([*timeline.pts, timeline.end_pts])) == {timeline.pts[1] - timeline.pts[0]}

        @settings(max_examples=10)
        @given(wanted=st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=8))
        def equal(wanted: list[int]) -> None:
            found = list(video.frames(wanted))
            assert [number for number, _ in found] == sorted(set(wanted))
            for number, frame in found:
                assert np.array_equal(frame.to_ndarray(), expected[number])

        equal()


@pytest.mark.parametrize("kind", ["h264", "h264-open-gop", "hevc", "vp9"])
def test_threads_change_no_picture(videos: dict[str, Path], kind: str) -> None:
    wanted = [3, 4, 17, 30, 39]
    with VideoFile(videos[kind]) as one, VideoFile(videos[kind], threads=3) as three:
        pairs = zip(one.frames(wanted), three.frames(wanted), strict=True)
        assert all(np.array_equal(a.to_ndarray(), b.to_ndarray()) for (_, a), (_, b) in pairs)


def test_hidden_vp8_frames_are_not_counted(videos: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "hidden.webm"
    with av.open(str(videos["vp8"])) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                data = bytearray(bytes(packet))
                data[0] &= ~0x10 if packet.pts == 9 * 40 else 0xFF
                changed = av.Packet(bytes(data))
                changed.pts, changed.dts, changed.time_base = packet.pts, packet.dts, packet.time_base
                changed.is_keyframe, changed.stream = packet.is_keyframe, stream
                target.mux(changed)
    with VideoFile(path) as video:
        assert len(video) == COUNT - 1
        assert numbers_of(video, [8, 9, 20]) == [8, 10, 21]


def test_a_size_that_changes_is_named(tmp_path: Path) -> None:
    path = tmp_path / "joined.h264"
    path.write_bytes(b"".join(part.read_bytes() for part in write_sizes(tmp_path)))
    with VideoFile(path) as video:
        assert len(video) == 18
        assert numbers_of(video, [0, 5]) == [0, 5]
        with pytest.raises(BadSample, match=r"joined\.h264: frame 6: has 144x160 pixels in a video of 128x96"):
            list(video.frames([1, 6]))


def test_a_size_that_changes_within_packets_is_named(tmp_path: Path) -> None:
    path = tmp_path / "joined.mkv"
    with av.open(str(path), "w") as target:
        stream = None
        for number, size in enumerate([(HEIGHT, WIDTH), (48, 160)]):
            part = write_video(tmp_path / "part.mkv", "mjpeg", count=5, size_hw=size, pixel_format="yuvj420p")
            with av.open(str(part)) as source:
                stream = stream or target.add_stream_from_template(source.streams.video[0])
                for packet in source.demux(video=0):
                    if packet.size:
                        packet.pts = packet.dts = (packet.pts or 0) + number * 200
                        packet.stream = stream
                        target.mux(packet)
    with VideoFile(path) as video:
        assert len(list(video.frames([0, 4]))) == 2
        with pytest.raises(BadSample, match=r"joined\.mkv: frame 7: has 160x48 pixels in a video of 128x96"):
            list(video.frames([1, 7]))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["h264", "hevc", "mpeg4"])
def test_damage_is_named_by_file_and_frame(
    videos: dict[str, Path], tmp_path: Path, kind: str, threads: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with av.open(str(videos[kind])) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    damaged = [packet for packet in packets if packet.is_keyframe][1]
    number = sorted(packet.pts for packet in packets).index(damaged.pts)
    data = bytearray(videos[kind].read_bytes())
    # Inside an HEVC slice, nothing tells altered data from other data.
    at = damaged.pos + (0 if kind == "hevc" else damaged.size // 3)
    data[at : at + 60] = bytes(range(60))
    path = tmp_path / f"damaged{videos[kind].suffix}"
    path.write_bytes(data)
    said = rf"damaged\.\w+: frame {number}: (cannot be decoded|is damaged)"
    with pytest.raises(BadSample, match=said), VideoFile(path, threads=threads) as video:
        list(video.frames(range(COUNT)))
    assert capfd.readouterr().err == ""


def test_damage_in_a_stream_without_times_is_named_nearly(videos: dict[str, Path], tmp_path: Path) -> None:
    """Nothing says which frame is stored where: the message names the first that did not come out."""
    data = bytearray(videos["h264-raw"].read_bytes())
    # Inside the second keyframe, which is an IDR slice (NAL type 5).
    at = data.find(b"\x00\x00\x01\x65", data.find(b"\x00\x00\x01\x65") + 1) + 300
    data[at : at + 60] = bytes(range(60))
    path = tmp_path / "damaged.h264"
    path.write_bytes(data)
    with pytest.raises(BadSample, match=r"damaged\.h264: frame 1\d or one soon after it: cannot be decoded"):
        VideoFile(path)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("kind", ["h264", "h264-open-gop", "vp9", "mjpeg"])
def test_a_truncated_file_is_refused(videos: dict[str, Path], tmp_path: Path, kind: str, share: float) -> None:
    source = videos[kind]
    if kind == "h264":
        # The index in front, as files for the network have it; behind, nothing could be opened.
        source = write_video(tmp_path / "front.mp4", "libx264", container_options={"movflags": "faststart"})
    data = source.read_bytes()
    path = tmp_path / f"short{source.suffix}"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(BadSample, match=r"short\.\w+: frame \d+: truncated: the file ends (after|within)"):
        VideoFile(path)


def test_what_is_no_video_or_leads_to_others_is_not_opened(videos: dict[str, Path], tmp_path: Path) -> None:
    for name, content in {
        "empty.mp4": "",
        "text.mp4": "not a video at all" * 50,
        "list.mp4": f"ffconcat version 1.0\nfile '{videos['h264']}'\n",
        "play.mp4": f"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nfile:{videos['h264-ts']}\n#EXT-X-ENDLIST\n",
    }.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(BadSample, match=f"{name}: the video cannot be opened"):
            VideoFile(tmp_path / name)
    said = r"nowhere\.mp4: the (file cannot be read|video cannot be opened): No such file"
    with pytest.raises(BadSample, match=said):
        VideoFile(tmp_path / "nowhere.mp4")
    with pytest.raises(BadSample, match="cannot be opened: No such file"):
        VideoFile(f"concat:{videos['h264-ts']}|{videos['h264-ts']}")


@pytest.mark.parametrize("kind", ["h264", "h264-ts", "h264-avi", "vp9", "mjpeg", "mpeg4"])
def test_whatever_is_altered_gives_frames_or_a_bad_sample(videos: dict[str, Path], kind: str) -> None:
    whole = videos[kind].read_bytes()

    @settings(max_examples=60)
    @given(
        places=st.lists(st.integers(0, 1200) | st.integers(0, len(whole) - 1), min_size=1, max_size=30),
        value=st.integers(0, 255),
        removed=st.sampled_from([0, 0, 1, 40]),
    )
    def survives(places: list[int], value: int, removed: int) -> None:
        data = bytearray(whole)
        for place in places:
            data[place] = value
        del data[places[0] : places[0] + removed]
        message = "video: "
        try:
            with VideoFile(bytes(data)) as video:
                assert {number for number, _ in video.frames([0, len(video) - 1])} == {0, len(video) - 1}
        except BadSample as error:
            message = str(error)
        assert message.startswith("video: ")

    survives()


def test_text_in_another_encoding_does_not_matter(videos: dict[str, Path]) -> None:
    data = videos["vp9"].read_bytes()
    assert b"Lavf" in data
    with VideoFile(data.replace(b"Lavf", b"\xe9\xff\xe9\xff")) as video:
        assert len(video) == COUNT


def test_what_is_not_decoded_is_named(videos: dict[str, Path], tmp_path: Path) -> None:
    path = write_video(tmp_path / "v.mkv", "mpeg2video", count=3)
    with pytest.raises(BadSample, match=r"v\.mkv: the video is coded in mpeg2video; supported are h264, hevc, av1"):
        VideoFile(path)
    with pytest.raises(BadSample, match=r"frame 0: has 128x96 = 12288 pixels; at most 12287 are allowed"):
        VideoFile(videos["h264"], limits=Limits(max_pixels=12287))
    VideoFile(videos["h264"], limits=Limits(max_pixels=12288)).close()
    with VideoFile(videos["h264"]) as video, pytest.raises(ValueError, match="from 0 to 39, got 3 to 40"):
        list(video.frames([40, 3]))
