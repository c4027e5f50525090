"""DALI's video decoder against ours: the same frames, pixels within the table, refusals by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from clip_files import number_in, turn, write_video
from definitions import AS_IT_IS, in_levels
from PIL import Image
from stream_files import assert_near

pytest.importorskip("nvidia.dali")

from onestream.preprocess import BadSample, CannotCompile, CenterCrop, Definition
from onestream.preprocess.backends.base import Device
from onestream.preprocess.video import Clip, ClipMaker, ColorRule

CUT = in_levels(CenterCrop(size=(150, 170)))
DEVICES = ["cpu", pytest.param("gpu", marks=pytest.mark.needs_gpu)]


def photo_video(path: Path, codec: str, *, full_range: bool = False) -> Path:
    """Five frames of a photo that moves."""
    asset = Path(__file__).parents[2] / "assets" / "chelsea.jpg"
    photo = np.asarray(Image.open(asset).convert("RGB"))[:288, :352]
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=25)
        stream.height, stream.width = 288, 352
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        if full_range:
            stream.codec_context.color_range = 2
        for number in range(5):
            frame = av.VideoFrame.from_ndarray(np.roll(photo, 8 * number, axis=1), format="rgb24")
            frame = frame.reformat(format=stream.pix_fmt, dst_color_range=2 if full_range else None)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["vp8", "vp9", "mjpeg"])
def test_the_same_frames_come_back(videos: dict[str, Path], kind: str, device: Device) -> None:
    maker = ClipMaker(AS_IT_IS, Clip(frames=(39, 0, 12, 39)), backend="dali", device=device)
    for source in (videos[kind], videos[kind].read_bytes()):
        assert [number_in(frame) for frame in maker.make(source)] == [39, 0, 12, 39]
    maker.close()


@pytest.mark.needs_gpu
@pytest.mark.parametrize("kind", ["h264", "hevc", "av1", "mpeg4"])
def test_the_gpu_decodes_more(videos: dict[str, Path], kind: str) -> None:
    maker = ClipMaker(AS_IT_IS, Clip(frames=(39, 0, 12, 39)), backend="dali", device="gpu")
    assert [number_in(frame) for frame in maker.make(videos[kind])] == [39, 0, 12, 39]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("definition", [AS_IT_IS, CUT], ids=["whole", "cut"])
@pytest.mark.parametrize(
    ("codec", "full"), [("libvpx", False), ("libvpx-vp9", False), ("libvpx-vp9", True), ("mjpeg", True)]
)
def test_pixels_are_within_the_table(
    tmp_path: Path, codec: str, full: bool, definition: Definition, device: Device
) -> None:
    path = photo_video(tmp_path / ("v.avi" if codec == "mjpeg" else "v.webm"), codec, full_range=full)
    clip = Clip(num_frames=3)
    ours = ClipMaker(definition, clip).make(path)
    theirs = ClipMaker(definition, clip, backend="dali", device=device).make(path)
    assert ours.shape == theirs.shape
    assert_near(ours, theirs, f"dali-{device}")


def test_what_dali_would_do_otherwise_is_refused(videos: dict[str, Path], tmp_path: Path) -> None:
    clip = Clip(num_frames=2)
    maker = ClipMaker(AS_IT_IS, clip, backend="dali")
    with pytest.raises(BadSample, match=r"h264\.mp4: dali does not decode h264 on a CPU, only mjpeg, vp8, vp9"):
        maker.make(videos["h264"])

    def tag(stream: Any) -> None:
        stream.codec_context.colorspace = 1

    path = write_video(tmp_path / "hd.webm", "libvpx-vp9", count=3, change=tag)
    with pytest.raises(BadSample, match=r"hd\.webm: is in bt709, and dali converts by bt601 only"):
        maker.make(path)
    upright = write_video(tmp_path / "v.mp4", "mjpeg", count=3, pixel_format="yuvj420p")
    with pytest.raises(BadSample, match=r"turned\.mp4: is displayed turned, which dali ignores"):
        maker.make(turn(tmp_path / "turned.mp4", upright, (0, 1, -1, 0)))
    assert len(maker.make(upright)) == 2
    for color, said in (
        (ColorRule(matrix="bt709"), "by bt601 only, not 'bt709'"),
        (ColorRule(range="full"), "range must be 'auto', got 'full'"),
    ):
        with pytest.raises(CannotCompile, match=said):
            ClipMaker(AS_IT_IS, clip, backend="dali", color=color)
