"""The backgrounds that composition is tested with, on a CPU and on a GPU."""

from __future__ import annotations

import numpy as np

from onestream.postprocess.matte.background import Background, Blur, Color, Picture

BACKGROUNDS: dict[str, Background] = {
    "color": Color((10, 200, 30)),
    "picture": Picture(np.random.default_rng(3).integers(0, 256, (50, 70, 3), dtype=np.uint8)),
    "blur": Blur(28),
    "least blur": Blur(12),
    "blur wider than the frame": Blur(500),
}
