"""What a batch gives: the memory of all pictures' values, where each picture's lie in it, and the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onestream.preprocess.errors import BadImage
from onestream.preprocess.geometry import Size
from onestream.preprocess.operations import Grid, Patches
from onestream.preprocess.operations.tiles import Tiles

if TYPE_CHECKING:
    import torch

Values = npt.NDArray[Any]


@dataclass(frozen=True)
class Patched:
    """The patches or tiles of a batch, of type uint8 or float32; of bfloat16, which NumPy has not, the bits in uint16.

    ``pixel_values``: (rows, \\*row) where rows of the pictures follow each other, (pictures, ``pad_to``, \\*row) of
    padded ones, (pictures, c, height, width) of the layout *image*; a row is (c * temporal * patch * patch,), or
    without ``flatten`` (c * temporal, patch, patch). ``image_grid_thw``: int64 (pictures, 3), rows along time, and
    patches down and across. Of tiles they are (tiles, 3, size, size), and their number, the thumbnail among them, rows
    and columns. ``source_sizes``: int64 (pictures, 2), height and width of the pictures, upright. All leave out the
    pictures in ``errors``, by their index.
    """

    pixel_values: Values
    image_grid_thw: npt.NDArray[np.int64]
    errors: dict[int, BadImage]
    patches: Patches | Tiles
    source_sizes: npt.NDArray[np.int64]
    of_videos: bool = False

    @property
    def tile_counts(self) -> npt.NDArray[np.int64]:
        """How many tiles each picture has, with its thumbnail: int64 (pictures,)."""
        return self.image_grid_thw[:, 0]

    @property
    def spatial_shapes(self) -> npt.NDArray[np.int64]:
        """Patches down and across, int64 (pictures, 2)."""
        return self.image_grid_thw[:, 1:]

    @property
    def image_sizes(self) -> npt.NDArray[np.int64]:
        """Height and width of each picture in pixels, int64 (pictures, 2): as it was resized, of tiles before."""
        if isinstance(self.patches, Tiles):
            return self.source_sizes
        return self.spatial_shapes * self.patches.patch

    @property
    def pixel_attention_mask(self) -> npt.NDArray[np.int32]:
        """Of padded pictures 1 where a row is the picture's own, and else 0, int32 (pictures, rows)."""
        counts = self.image_grid_thw.prod(axis=1)
        mask: npt.NDArray[np.int32] = (np.arange(self.pixel_values.shape[1]) < counts[:, None]).astype(np.int32)
        return mask

    def features(self) -> dict[str, Values]:
        """All that transformers' image or video processor gives, by its names."""
        if self.of_videos:
            return {"pixel_values_videos": self.pixel_values, "video_grid_thw": self.image_grid_thw}
        values: dict[str, Values] = {"pixel_values": self.pixel_values}
        if self.patches.layout == "image":
            return values | {"image_sizes": self.image_sizes}
        if self.patches.pad_to is not None:
            return values | {
                "pixel_attention_mask": self.pixel_attention_mask, "spatial_shapes": self.spatial_shapes
            }  # fmt: skip
        return values | {"image_grid_thw": self.image_grid_thw}

    def to_torch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """``pixel_values`` and ``image_grid_thw`` as tensors, which share their memory."""
        return to_tensor(self.pixel_values), to_tensor(self.image_grid_thw)


def to_tensor(values: Values) -> torch.Tensor:
    """A tensor that shares the memory of an array; uint16 are the bits of bfloat16."""
    import torch

    tensor = torch.from_numpy(values)
    return tensor.view(torch.bfloat16) if values.dtype == np.uint16 else tensor


@dataclass(frozen=True)
class Planned:
    """A picture or a video: its grid, and what makes the frames of each step along time, (frames, height, width, c).

    ``size_hw`` is that of the picture, upright, before all.
    """

    grid: Grid
    steps: Sequence[Callable[[], npt.NDArray[np.uint8] | BadImage]]
    size_hw: Size


@dataclass(frozen=True)
class Batch:
    """The good pictures of a batch, by their grids."""

    patches: Patches | Tiles
    channels: int
    grids: Sequence[Grid]

    def memory(self, dtype: np.dtype[Any], out: Values | None) -> Values:
        """New memory, or the beginning of ``out``. Raises ``ValueError`` where that is no memory for this batch."""
        count, *shape = self._shape()
        if out is None:
            return np.empty((count, *shape), dtype)
        fits = out.dtype == dtype and out.ndim == 1 + len(shape) and list(out.shape[1:]) == shape
        if not fits or len(out) < count or not out.flags.carray:
            rest = ", ".join(map(str, shape))
            raise ValueError(
                f"got out of {out.dtype}{out.shape}, expected {dtype}({count} or more, {rest}), contiguous, writable"
            )
        return out[:count]

    def parts(self, values: Values) -> list[Values]:
        """Where each picture's values go: rows (rows, columns), or (c, height, width). What lies beside them is 0."""
        if self.patches.layout == "image":
            for picture, (_, down, across) in zip(values, self.grids, strict=True):
                picture[:, down * self.patches.patch :] = 0
                picture[:, :, across * self.patches.patch :] = 0
            return list(values)
        counts = list(map(self.patches.count, self.grids))
        if self.patches.pad_to is None:
            found = np.split(values, np.cumsum(counts, dtype=np.int64)[:-1]) if counts else []
        else:
            found = [rows[:count] for rows, count in zip(values, counts, strict=True)]
            for rows, count in zip(values, counts, strict=True):
                rows[count:] = 0
        return [rows.reshape(len(rows), -1) for rows in found]

    def without(self, values: Values, bad: set[int]) -> tuple[Values, list[Grid]]:
        """The values and grids of the pictures that are not among ``bad``, of what ``parts`` took."""
        good = [index for index in range(len(self.grids)) if index not in bad]
        grids = [self.grids[index] for index in good]
        if not bad:
            return values, grids
        # Data that is damaged behind a good header is rare: values move only then.
        if self.patches.pads:
            within = tuple(map(slice, Batch(self.patches, self.channels, grids)._shape()))
            return np.ascontiguousarray(values[good][within]), grids
        ends = np.cumsum([0, *map(self.patches.count, self.grids)], dtype=np.int64)
        return np.concatenate([values[:0], *(values[ends[index] : ends[index + 1]] for index in good)]), grids

    def _shape(self) -> tuple[int, ...]:
        if self.patches.layout == "image":
            down, across = (max((grid[axis] for grid in self.grids), default=0) for axis in (1, 2))
            return len(self.grids), self.channels, down * self.patches.patch, across * self.patches.patch
        row = self.patches.row_shape(self.channels)
        if self.patches.pad_to is not None:
            return len(self.grids), self.patches.pad_to, *row
        return sum(map(self.patches.count, self.grids)), *row
