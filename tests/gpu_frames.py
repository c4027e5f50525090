"""Frames for tests of a GPU, a real one or one of host memory: random planes, mattes, surfaces as NVDEC writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gpu_files import uploaded

from onestream.postprocess.planes import subsampled
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
    memory = uploaded(np.concatenate([part.ravel() for part in parts]).view(np.uint8), stream)
    none = np.empty((0, 0), y.dtype)
    like = Planes(none, none, none, planes.size_hw, planes.shifts, planes.depth, planes.matrix_tag, planes.full_range)
    return Surface(memory=memory, layout=layout, like=like, orientation=Orientation(), pts=0, duration=1)


def a_frame(size_hw: tuple[int, int], key: Any = ((1, 1), 8), *, tag: int = 1, full: bool = False, seed: int) -> Planes:
    shifts, depth = key
    random, chroma_hw = np.random.default_rng(seed), subsampled(size_hw, shifts)
    dtype = np.uint8 if depth == 8 else np.uint16
    y, u, v = (random.integers(0, 1 << depth, one, dtype) for one in (size_hw, chroma_hw, chroma_hw))
    return Planes(y, u, v, size_hw, shifts, depth, tag, full)


def a_matte(size_hw: tuple[int, int], seed: int) -> Any:
    """Levels of every kind; half of them are only 0 or 255, as in most of a real matte."""
    random = np.random.default_rng(seed)
    extremes = 255 * random.integers(0, 2, size_hw)
    return np.where(random.random(size_hw) < 0.5, random.integers(0, 256, size_hw), extremes).astype(np.uint8)


def blank(like: Planes, *, padding: int = 0) -> Planes:
    """Planes on the host to compose into."""
    chroma_hw = subsampled(like.size_hw, like.shifts)
    y, u, v = (np.full((rows, columns + padding), 123, np.uint8) for rows, columns in (like.size_hw, *[chroma_hw] * 2))
    return Planes(y, u, v, like.size_hw, like.shifts, 8, like.matrix_tag, like.full_range)
