"""What the kinds do to frames of a video before they are encoded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

if TYPE_CHECKING:
    from onestream.postprocess.matte.background import Background
    from onestream.postprocess.matte.composer_gpu import GpuComposer
    from onestream.postprocess.planes_gpu import PlanesTaker
    from onestream.preprocess.video.common.color import ColorRule, Planes
    from onestream.preprocess.video.common.orientation import Orientation
    from onestream.preprocess.video.gpu.surfaces import Surface

Results = dict[str, npt.NDArray[Any]]
"""The answer to one frame, without the batch."""


class FrameWork(ABC):
    """What is done to the frames of one stream before they are encoded, by the pipeline's results for each."""

    @abstractmethod
    def write(self, frame: Planes, results: Results, out: Planes) -> None:
        """Write a frame, upright and of any depth, with what is done to it, to ``out``, which is like it in 8 bit."""

    @abstractmethod
    def write_surface(self, surface: Surface, orientation: Orientation, results: Results, out: Planes) -> None:
        """The same of a stored picture on a GPU, which ``orientation`` turns upright; ``out`` is on the host."""


class GpuFrames(Protocol):
    """Where frames are decoded on a GPU: what works on those of one video there, prepared by the kind."""

    def composer(self, background: Background, *, rule: ColorRule) -> GpuComposer:
        """A composer for one video."""

    def taker(self) -> PlanesTaker:
        """What brings the frames of one video to the host."""
