"""Many different photos, so that no cache of one file helps: random parts of the example photos as JPEGs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.photos import QUALITY, Size

_SMALLEST_PART = 0.6
_GRAIN_SIGMA = 2.5
_GRAIN_ABOVE_PIXELS = 1_000_000


def make_photos(size: Size, count: int, *, sources: Sequence[Path], seed: int, threads: int) -> list[bytes]:
    """``count`` JPEGs of one size, 4:2:0, always the same for the same seed and Pillow.

    Each is a random part of a source, at least 0.6 as large as the largest that fits, mirrored or not. Enlarged
    pictures are smoother than a camera's, so the large size gets grain until a file has the bytes of a camera's
    (``benchmarks.photos``). Raises ``ValueError`` without sources.
    """
    if not sources:
        raise ValueError("photos are made from image files, got none")
    width, height = (int(side) for side in size.split("x"))
    originals = [Image.open(path).convert("RGB") for path in sources]

    def make(index: int) -> bytes:
        rng = np.random.default_rng((seed, width, height, index))
        return _jpeg(_part(originals[index % len(originals)], width, height, rng))

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(make, range(count)))


def _part(original: Image.Image, width: int, height: int, rng: np.random.Generator) -> Image.Image:
    scale = min(original.width / width, original.height / height) * rng.uniform(_SMALLEST_PART, 1)
    wide, high = width * scale, height * scale
    left, top = rng.uniform(0, original.width - wide), rng.uniform(0, original.height - high)
    box = (left, top, min(left + wide, original.width), min(top + high, original.height))
    picture = original.resize((width, height), Image.Resampling.LANCZOS, box=box)
    if rng.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if width * height <= _GRAIN_ABOVE_PIXELS:
        return picture
    grain = rng.standard_normal((height, width, 1), np.float32) * _GRAIN_SIGMA
    return Image.fromarray(np.clip(np.rint(np.asarray(picture) + grain), 0, 255).astype(np.uint8))


def _jpeg(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
