"""The pixels of a definition from one decoded frame: equal, bit by bit, to those of ``ClipMaker``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onestream.preprocess.backends.exactness import refuse_regions
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BackendMissing, CannotCompile
from onestream.preprocess.geometry import Size, Window
from onestream.preprocess.limits import Limits
from onestream.preprocess.plan import Part, Placement, free_sizes, place
from onestream.preprocess.video.common.color import ColorRule, Planes, to_rgb
from onestream.preprocess.video.common.orientation import Orientation
from onestream.wire.install import install_command


class PictureMaker:
    """Makes the pixels of one definition from frames of any size.

    Raises ``CannotCompile`` for a definition that resizes twice, or not first.
    """

    def __init__(self, definition: Definition, color: ColorRule, limits: Limits) -> None:
        refuse_regions(definition, what="a video")
        try:
            from onestream.preprocess.backends.finish import CpuFinish
        except ImportError as error:
            raise BackendMissing(f"the compiled resize needs numba: {install_command('cpu')}") from error
        if not definition.resizes_once or len(definition.fills) > 1:
            raise CannotCompile("streams are resized once, before any crop or pad, and filled with one value")
        self._definition, self._color, self._limits = definition.pixels(), color, limits
        self._finish = CpuFinish(self._definition)
        self._placed_hw: Size | None = None
        self._placed: tuple[Placement, Part] | None = None

    def pixels(self, planes: Planes, orientation: Orientation) -> npt.NDArray[np.uint8]:
        """(height, width, channels) uint8, as ``definition.pixels()`` says.

        Raises ``BadImage`` where the definition cannot be applied to a frame of this size, ``ValueError`` where its
        colours cannot be converted.
        """
        placement, part = self._place(orientation.displayed_size(planes.size_hw))
        window = placement.window
        mapped = self._color.mapped(planes.transfer_tag) is not None
        if orientation == Orientation() and self._finish.is_plain and window.height and not mapped:
            from onestream.preprocess.video.common.resized import resized_rgb

            placed = resized_rgb(
                planes,
                self._color,
                part,
                (window.height, window.width),
                antialias=self._finish.antialias,
                to_bgr=self._definition.color == "bgr",
            )
            return self._finish.put(placed, placement)
        stored = orientation.stored_window(Window(*part.anchor, *part.shape), planes.size_hw)
        return self._finish.finish(orientation.turn(to_rgb(planes, self._color, stored)), placement, part)

    def _place(self, displayed_hw: Size) -> tuple[Placement, Part]:
        """Work out the geometry, anew where the size changes."""
        if self._placed is None or self._placed_hw != displayed_hw:
            for size_hw in free_sizes(self._definition, displayed_hw):
                self._limits.check_resized(size_hw)
            placement = place(self._definition, displayed_hw)
            self._placed_hw, self._placed = displayed_hw, (placement, self._finish.part(placement))
        return self._placed
