"""Surfaces made of planes, as NVDEC would write them, on a GPU or in host memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from onestream.preprocess.video.common.color import Planes
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.gpu.surfaces import LAYOUTS, Surface


def a_surface(planes: Planes, stream: Any) -> Surface:
    """As NVDEC writes it, done: chroma interleaved behind luma of an even width, samples in the upper bits."""
    layout = LAYOUTS[planes.shifts, planes.depth]
    shift = 16 - planes.depth if planes.depth > 8 else 0
    y, u, v = (plane << shift for plane in (planes.y, planes.u, planes.v))
    if layout.interleaved:
        y = np.pad(y, ((0, 0), (0, y.shape[1] & 1)), constant_values=77)
        parts = [y, np.stack([u, v], axis=2)]
    else:
        parts = [y, u, v]
    samples = np.concatenate([part.ravel() for part in parts]).view(np.uint8)
    memory = stream.allocate(samples.shape, np.uint8)
    stream.upload(samples, memory)
    # The samples go away now.
    stream.sync()
    none = np.empty((0, 0), y.dtype)
    like = Planes(none, none, none, planes.size_hw, planes.shifts, planes.depth, planes.matrix_tag, planes.full_range)
    return Surface(memory=memory, layout=layout, like=like, orientation=Orientation(), pts=0, duration=1)
