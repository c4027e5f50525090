"""What transformers' image processors give beside the tiles of a batch, and how they arrange those."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.preprocess.patches.batch import Patched

Values = npt.NDArray[Any]
Features = dict[str, Any]


def of_llava(made: Patched) -> Features:
    """Of LLaVA-NeXT: (pictures, most tiles, 3, size, size), those of fewer padded with zeros, and sizes."""
    return {"pixel_values": _padded(made.pixel_values, made.tile_counts), "image_sizes": made.image_sizes}


def of_got_ocr2(made: Patched) -> Features:
    """Of GOT-OCR2 and InternVL: (tiles, 3, size, size), and how many each picture has."""
    return {"pixel_values": made.pixel_values, "num_patches": made.tile_counts.tolist()}


def of_idefics3(made: Patched, samples: Sequence[int], *, with_grid: bool) -> Features:
    """Of Idefics3 and SmolVLM: (samples, most tiles, 3, size, size), with a mask of what is padded.

    ``samples`` says how many pictures each has. ``with_grid`` adds rows and columns of each picture's grid, 0 without.
    """
    bounds = [*pairwise(np.cumsum([0, *samples]).tolist())]
    counts = np.array([made.tile_counts[first:end].sum() for first, end in bounds], np.int64)
    values = _padded(made.pixel_values, counts)
    mask = np.zeros((*values.shape[:2], *values.shape[3:]), np.int64)
    mask[np.arange(values.shape[1]) < counts[:, None]] = 1
    features: Features = {"pixel_values": values, "pixel_attention_mask": mask}
    if with_grid:
        grids = np.where(made.tile_counts[:, None] > 1, made.image_grid_thw[:, 1:], 0)
        for axis, name in enumerate(("rows", "cols")):
            features[name] = [grids[first:end, axis].tolist() for first, end in bounds]
    return features


def _padded(tiles: Values, counts: npt.NDArray[np.int64]) -> Values:
    """The tiles of each, as many as the most have, zeros at the end."""
    most = int(counts.max(initial=0))
    if (counts == most).all():
        return tiles.reshape(len(counts), most, *tiles.shape[1:])
    padded = np.zeros((len(counts), most, *tiles.shape[1:]), tiles.dtype)
    padded[np.arange(most) < counts[:, None]] = tiles
    return padded
