"""A video that is made of one photo: a window pans over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

_SEED = 11


def write_panning(
    path: Path,
    photo: Image.Image,
    *,
    frames: int,
    fps: int = 30,
    size_hw: tuple[int, int] = (1080, 1920),
    grain_sigma: float = 0.0,
    bits_per_s: int | None = None,
) -> None:
    """Write H.264 with libx264's default settings; the file appears when it is whole.

    ``photo`` is enlarged to be a little wider than the window, and the window goes round once. ``grain_sigma`` is the
    strength of the noise, in levels, that is new in every frame as a sensor's is. ``bits_per_s`` None leaves the rate
    to libx264. Raises ``ValueError`` for a photo that is much wider than the window.
    """
    import av

    height, width = size_hw
    margin = width // 8
    side = width + margin
    scaled_hw = round(photo.height * side / photo.width), side
    if scaled_hw[0] < height + margin // 2:
        raise ValueError(f"the photo is {photo.width}x{photo.height}, too wide for a window of {width}x{height}")
    large = np.asarray(photo.convert("RGB").resize(scaled_hw[::-1], Image.Resampling.BICUBIC))
    random = np.random.default_rng(_SEED)
    grain = random.normal(0, grain_sigma, (2 * height, 2 * width)).astype(np.float32) if grain_sigma else None
    unfinished = path.with_name(f"{path.stem}.part{path.suffix}")
    with av.open(str(unfinished), "w") as container:
        stream: Any = container.add_stream("libx264", rate=fps, options={"x264-params": "log-level=none"})
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        if bits_per_s:
            stream.bit_rate = bits_per_s
        for number in range(frames):
            angle = 2 * np.pi * number / frames
            left, top = round(margin / 2 * (1 + np.sin(angle))), round(margin / 4 * (1 - np.cos(angle)))
            window = large[top : top + height, left : left + width]
            if grain is not None:
                down, aside = random.integers(0, size_hw)
                noisy = window + grain[down : down + height, aside : aside + width, None]
                window = np.clip(noisy, 0, 255).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(window), format="rgb24")))
        container.mux(stream.encode())
    unfinished.rename(path)
