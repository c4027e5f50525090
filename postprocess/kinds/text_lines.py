"""The lines of text in a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from onestream.postprocess import BadNetwork
from onestream.postprocess.kinds.base import Opening, Options, ParitySection, Postprocess, Tensors, count_bad
from onestream.postprocess.network import NetworkOutput, no_probability, refuse_values, shapes_text
from onestream.postprocess.parameters import Parameters
from onestream.postprocess.text.reading_order import reading_order
from onestream.preprocess import Definition
from onestream.preprocess.geometry import Size
from onestream.preprocess.plan import Planner
from onestream.wire.tensor_names import IMAGE_SIZE, LEFT_OUT, QUADS, SCORES


class TextLines(Options):
    """Where text is, from a network with one output (batch, 1, height, width) of probabilities, as DB gives it.

    Differentiable binarization: https://arxiv.org/abs/1911.08947. Its networks mark a shrunken core of each line.
    """

    takes_image_size: ClassVar[bool] = True
    finds_regions: ClassVar[bool] = True
    finds_lines: ClassVar[bool] = True
    parity_section: ClassVar[ParitySection] = "regions"

    kind: Literal["text_lines"] = "text_lines"
    threshold: float = Field(
        default=0.3, gt=0, lt=1, description="a cell of the network's output belongs to a line where it is above this"
    )
    box_threshold: float = Field(
        default=0.5, ge=0, lt=1, description="a line must have a score, the mean of its rectangle's cells, from this on"
    )
    unclip_ratio: float = Field(
        default=1.6,
        ge=0,
        le=10,
        description="the rectangle of a line grows on every side by its area times this, divided by its perimeter",
    )
    dilation: bool = Field(
        default=True,
        description="cells are made larger by half a cell on every side, which joins those with one between",
    )
    min_side: float = Field(
        default=3.0,
        ge=1,
        allow_inf_nan=False,
        description="a line's shorter side must be so long, in cells before the rectangle grows, and in pixels of the "
        "picture after it",
    )
    max_lines: int = Field(
        default=1000,
        ge=1,
        le=10000,
        description="the most lines of a picture that are found: those with the best scores stay, the others are "
        "counted in ``left_out``; ``limits.max_lines`` says how many of them later stages take",
    )

    def order(self, quads: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """See ``Options.order``: as they are read."""
        return reading_order(quads)

    def open(self, opening: Opening) -> Postprocess:
        return _line_finder(self, opening.definition, opening.dropped)

    def check_values(self, outputs: Sequence[NetworkOutput], runs: Iterable[Tensors]) -> None:
        """See ``Options.check_values``: they are probabilities. Those of sigmoid need no look."""
        output = outputs[0]
        if len(outputs) > 1 or output.activation == "sigmoid" or not output.is_float:
            return
        values = np.concatenate([run[output.name].ravel() for run in runs]).astype(np.float64)
        values = values[np.isfinite(values)]
        refuse_values(values, no_probability(values), "values are outside 0 to 1", self.kind)

    def suited_to(self, outputs: Sequence[NetworkOutput]) -> TextLines:
        """See ``Options.suited_to``: a map of probabilities."""
        dims = outputs[0].dims
        is_map = len(dims) == 2 or (len(dims) == 3 and dims[0] in (1, None))
        if len(outputs) != 1 or not is_map or not outputs[0].is_float:
            raise BadNetwork(
                "text_lines takes one output of floats, (batch, 1, height, width) or (batch, height, width); got "
                f"{shapes_text(outputs)}. network_outputs: [NAME] in the pipeline file takes one of several"
            )
        if outputs[0].activation == "softmax":
            raise BadNetwork(f"text_lines takes probabilities of one class; {outputs[0].name!r} comes from softmax")
        return self


def _line_finder(options: TextLines, definition: Definition, dropped: Callable[[int], None]) -> Postprocess:
    from onestream.postprocess.text.lines import find_lines

    fields = options.model_dump(exclude={"kind"})
    # Pictures come in few sizes.
    planner = Planner(definition)

    def lines(probabilities: npt.NDArray[Any], size_hw: Size) -> Tensors:
        # A network may leave out the dimension of its one class.
        found = find_lines(probabilities.reshape(probabilities.shape[-2:]), planner.mapping(size_hw), **fields)
        return {
            QUADS: found.quads[None],
            SCORES: found.scores[None],
            IMAGE_SIZE: np.array([size_hw], np.int32),
            LEFT_OUT: np.array([[found.left_out]], np.int32),
        }

    def lines_of_each(outputs: Tensors, sizes: Sequence[Size], _parameters: Sequence[Parameters] = ()) -> list[Tensors]:
        (batch,) = outputs.values()
        count_bad(~np.isfinite(batch), dropped)
        return [lines(probabilities, size_hw) for probabilities, size_hw in zip(batch, sizes, strict=True)]

    return lines_of_each
