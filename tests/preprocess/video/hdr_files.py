"""Pictures and videos in HDR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from clip_files import write_video
from sample_images import photo

from onestream.preprocess.video.common.tone import Hdr

_TO_BT2020 = np.linalg.inv([[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]])


def as_hdr(pixels: np.ndarray[Any, Any], transfer: Hdr) -> np.ndarray[Any, Any]:
    """An SDR picture as HDR shows it: white is 203 cd/m²."""
    light = (pixels / 255.0) ** 2.4 @ _TO_BT2020.T
    if transfer == "pq":
        power = np.clip(light * 203 / 10000, 0, 1) ** 0.1593017578125
        level = ((0.8359375 + 18.8515625 * power) / (1 + 18.6875 * power)) ** 78.84375
    else:
        scene = np.clip(light * 0.203, 0, 1) ** (1 / 1.2)
        upper = 0.17883277 * np.log(np.maximum(12 * scene - 0.28466892, 1e-9)) + 0.55991073
        level = np.where(scene <= 1 / 12, np.sqrt(3 * scene), upper)
    return np.round(255 * level).astype(np.uint8)


def write_hdr(path: Path) -> Path:
    """Eight frames of PQ, in HEVC of 10 bit."""

    def tag(stream: Any) -> None:
        context = stream.codec_context
        context.color_primaries, context.color_trc, context.colorspace, context.color_range = 9, 16, 9, 1

    pictures = [as_hdr(np.asarray(photo("coffee").resize((128, 96)).rotate(9 * n)), "pq") for n in range(8)]
    options = {"x265-params": "log-level=none:colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc"}
    return write_video(path, "libx265", pictures=pictures, options=options, pixel_format="yuv420p10le", change=tag)
