"""What a composed RGB frame must be: NumPy and OpenCV, for the tests of composing on a GPU."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from onestream.postprocess.matte.background import covering
from onestream.postprocess.matte.composer import alpha, picture_window
from onestream.preprocess import Definition
from onestream.serving.pipeline import BlurBackground, ColorBackground, Matte

Array = npt.NDArray[Any]


def composed(
    options: Matte, definition: Definition, frame: Array, person: Array, picture: Array | None = None
) -> Array:
    """(height, width, 3) float64 levels, not rounded; ``frame`` is RGB, ``person`` the network's probabilities."""
    height, width = frame.shape[:2]
    window = picture_window(definition, (height, width))
    levels = alpha(person, softness=options.softness)
    cut = levels[window.top : window.top + window.height, window.left : window.left + window.width]
    share = cv2.resize(cut.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)[:, :, None] / 255
    background = options.background
    if isinstance(background, ColorBackground):
        behind: Array = np.array(background.rgb, np.float64)
    elif isinstance(background, BlurBackground):
        deviation = 8 * (background.radius // 8) + 4
        behind = cv2.GaussianBlur(frame.astype(np.float32), (0, 0), deviation, borderType=cv2.BORDER_REPLICATE)
    else:
        assert picture is not None
        behind = covering(picture, (height, width)).astype(np.float64)
    return share * frame + (1 - share) * behind
