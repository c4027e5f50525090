"""The resize filters: how far they reach, and what Pillow calls them."""

from __future__ import annotations

from PIL import Image

from onestream.preprocess.operations import Filter

SUPPORT: dict[Filter, int] = {"bilinear": 1, "bicubic": 2, "lanczos": 3}
"""Source pixels that a filter reads to each side at scale 1. *nearest* decides ties on whole-image coordinates."""

PILLOW_FILTERS: dict[Filter, Image.Resampling] = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
