"""A value for each pixel of a picture, such as its depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from onestream.postprocess import BadNetwork
from onestream.postprocess.kinds.base import Opening, Options, Postprocess, Tensors, count_bad
from onestream.postprocess.network import NetworkOutput, grid_of, shapes_text
from onestream.postprocess.parameters import Parameters
from onestream.preprocess import Definition
from onestream.preprocess.geometry import Size
from onestream.wire.tensor_names import MAP


class DenseMap(Options):
    """A value for each pixel, such as depth, from a network with one output (batch, height, width) of floats."""

    takes_image_size: ClassVar[bool] = True
    takes_long: ClassVar[bool] = True
    needs_output_sizes: ClassVar[bool] = True

    kind: Literal["dense_map"] = "dense_map"

    def lengths(self, outputs: Sequence[NetworkOutput], definition: Definition, names: int | None) -> dict[str, int]:
        if grid_of(outputs, self.kind, definition) != 1:
            raise BadNetwork(f"dense_map takes one value for each place; got {shapes_text(outputs)}")
        return {}

    def open(self, opening: Opening) -> Postprocess:
        from onestream.postprocess.segmentation import Place

        def value_of_each(values: npt.NDArray[Any], size_hw: Size) -> Tensors:
            grid = values.reshape(values.shape[-2:]).astype(np.float32)
            bad = ~np.isfinite(grid)
            count_bad(bad, opening.dropped)
            grid[bad] = 0
            return {MAP: Place(opening.definition, size_hw, (grid.shape[0], grid.shape[1])).values(grid)[None]}

        def maps(outputs: Tensors, sizes: Sequence[Size], _parameters: Sequence[Parameters] = ()) -> list[Tensors]:
            (batch,) = outputs.values()
            return [value_of_each(values, size_hw) for values, size_hw in zip(batch, sizes, strict=True)]

        return maps

    def open_compared(self, opening: Opening) -> Postprocess:
        """See ``Options.open_compared``: the network's own values."""

        def grids(outputs: Tensors, _sizes: Sequence[Size], _parameters: Sequence[Parameters] = ()) -> list[Tensors]:
            (batch,) = outputs.values()
            return [{MAP: values.reshape(1, *values.shape[-2:])} for values in batch]

        return grids
