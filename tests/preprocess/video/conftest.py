"""One small video of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from clip_files import write_video
from hdr_files import write_hdr

KINDS = {
    "h264": ("libx264", ".mp4", {"g": "12", "bf": "3"}),
    "h264-open-gop": ("libx264", ".mkv", {"x264-params": "log-level=none:open-gop=1:keyint=10:bframes=3"}),
    "h264-ts": ("libx264", ".ts", {"g": "12"}),
    "h264-avi": ("libx264", ".avi", {"g": "12", "bf": "2"}),
    "h264-raw": ("libx264", ".h264", {"g": "12"}),
    "hevc": ("libx265", ".mp4", {"x265-params": "log-level=none:keyint=12"}),
    "av1": ("libsvtav1", ".mp4", {"g": "12", "preset": "12"}),
    "vp8": ("libvpx", ".webm", {"g": "12", "threads": "1"}),
    "vp9": ("libvpx-vp9", ".webm", {"g": "12", "cpu-used": "8", "threads": "1"}),
    "mjpeg": ("mjpeg", ".avi", {}),
    "mpeg4": ("mpeg4", ".mp4", {"g": "12", "bf": "2"}),
    "mpeg4-avi": ("mpeg4", ".avi", {"g": "12", "bf": "2"}),
}


@pytest.fixture(scope="session")
def videos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By kind, a video of 40 numbered frames."""
    folder = tmp_path_factory.mktemp("videos")
    found = {}
    for kind, (codec, suffix, options) in KINDS.items():
        pixel_format = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        found[kind] = write_video(folder / f"{kind}{suffix}", codec, options=options, pixel_format=pixel_format)
    return found


@pytest.fixture(scope="session")
def hdr_video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few frames of HDR."""
    return write_hdr(tmp_path_factory.mktemp("hdr") / "hdr.mp4")
