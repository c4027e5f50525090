"""The pixels of a definition from one decoded frame: equal, bit by bit, to those of ``ClipMaker``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onestream.preprocess.backends.base import refuse_inexact, refuse_regions
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BackendMissing
from onestream.preprocess.limits import Limits
from onestream.preprocess.plan import Planner
from onestream.preprocess.video.common.color import ColorRule, Planes, to_rgb
from onestream.preprocess.video.common.orientation import Orientation
from onestream.wire.install import install_command


class PictureMaker:
    """Makes the pixels of one definition from frames of any size.

    Raises ``CannotCompile`` for a definition that resizes twice, or not first, or fills with two values.
    """

    def __init__(self, definition: Definition, color: ColorRule, limits: Limits) -> None:
        refuse_regions(definition, what="a video")
        try:
            from onestream.preprocess.backends.finish import CpuFinish
        except ImportError as error:
            raise BackendMissing(f"the compiled resize needs numba: {install_command('cpu')}") from error
        refuse_inexact(definition, backend="a stream", own_filter=False)
        self._color, self._planner = color, Planner(definition.pixels(), limits)
        self._finish = CpuFinish(self._planner.definition)

    def pixels(self, planes: Planes, orientation: Orientation) -> npt.NDArray[np.uint8]:
        """(height, width, channels) uint8, as ``definition.pixels()`` says.

        Raises ``BadImage`` where the definition cannot be applied to a frame of this size, ``ValueError`` where its
        colours cannot be converted.
        """
        from onestream.preprocess.cpu.pillow_weights import columns_first

        plan = self._planner(orientation.displayed_size(planes.size_hw))
        mapped = self._color.mapped(planes.transfer_tag) is not None
        plain = self._finish.is_plain and not columns_first(plan.decoded_hw, plan.resized_hw)
        if orientation == Orientation() and plain and plan.window.height and not mapped:
            from onestream.preprocess.video.common.resized import resized_rgb

            to_bgr = self._planner.definition.color == "bgr"
            placed = resized_rgb(planes, self._color, plan, to_bgr=to_bgr)
            return self._finish.put(placed, plan)
        stored = orientation.stored_window(plan.part, planes.size_hw)
        return self._finish.finish(orientation.turn(to_rgb(planes, self._color, stored)), plan)
