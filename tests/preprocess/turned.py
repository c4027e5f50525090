"""Rectangles that lie askew."""

from __future__ import annotations

import numpy as np


def rectangle(center: tuple[float, float], width: float, height: float, degrees: float) -> np.ndarray:
    """The corners (4, 2) of a rectangle that is turned clockwise, in that order from its top left one."""
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    upright = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * (width / 2, height / 2)
    return upright @ np.array([(cos, sin), (-sin, cos)]) + center
