"""What is compared with the reference: one small interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from onestream.preprocess.backends.base import ON_CPU, BackendName, Device, Sample
from onestream.preprocess.definition import PreprocessingStage
from onestream.preprocess.tolerances import Bounds, Source, tolerance

Pixels = npt.NDArray[np.uint8]
Outputs = Mapping[str, npt.NDArray[Any]]
"""A network's outputs by name, each with a batch of 1."""


class CannotCompare(Exception):
    """Nothing can be compared; the message says why and what to do."""


class Refused(Exception):
    """A subject gives no result for a photo or frame; the message says why."""


class Given(Protocol):
    """What subjects are given: a ``Photo``, a frame of a clip (``video.frames.Frame``), or a region of a photo
    (``cascade.cut_regions.PhotoRegion``).
    """

    @property
    def name(self) -> str:
        """In reports."""
        ...

    @property
    def source(self) -> Source:
        """How it is stored, which the tolerances distinguish."""
        ...


Item = TypeVar("Item", bound=Given)


@dataclass(frozen=True, slots=True)
class Photo:
    """An encoded image, its name in reports, and how it is stored, which the tolerances distinguish."""

    name: str
    data: bytes
    source: Source


@dataclass(frozen=True, slots=True)
class Observation:
    """What a subject makes of one photo or frame.

    ``stages`` holds the stages that can be seen from outside, as ``Definition.stage`` describes them. ``pixels`` are
    a network's, about, where there is no *crop* among them, and ``decoded_hw`` is the picture's (height, width) where
    there is no *decode*. ``outputs`` are the network's, where the subject ran one itself. ``answers`` are the whole
    pipeline's, of those who give one, by their name. Of patches *normalize* are the rows, ``grid`` are frames and
    patches down and across, and ``tokens`` is how many tokens the subject counts.
    """

    stages: Mapping[PreprocessingStage, Sample]
    pixels: Pixels | None = None
    decoded_hw: tuple[int, int] | None = None
    outputs: Outputs | None = None
    answers: Mapping[str, Outputs] = field(default_factory=dict)
    grid: tuple[int, int, int] | None = None
    tokens: int = 0

    @property
    def network_pixels(self) -> Pixels | None:
        """What a network is fed, uint8 (height, width, channels); None where it cannot be seen."""
        return self.stages.get("crop") if self.pixels is None else self.pixels

    @property
    def picture_hw(self) -> tuple[int, int] | None:
        """(height, width) of the picture as it was decoded, in which boxes are; None where that cannot be seen."""
        if "decode" not in self.stages:
            return self.decoded_hw
        height, width = self.stages["decode"].shape[:2]
        return height, width


class Subject(ABC, Generic[Item]):
    """Something that preprocesses photos, or frames of clips.

    ``judged`` says whether its differences count; what others wrote is only shown. ``backend`` and ``device`` name its
    entries in the tolerances table. ``cause`` says what makes a difference, where that is known before.
    """

    cause = ""

    def __init__(self, name: str, *, judged: bool, backend: BackendName = ON_CPU, device: Device = "cpu") -> None:
        self.name, self.judged, self.backend, self.device = name, judged, backend, device

    @abstractmethod
    def observe(self, item: Item) -> Observation:
        """Process one photo or frame. Raises ``Refused`` where there is no result."""

    def allowed(self, stage: PreprocessingStage, source: Source) -> Bounds | None:
        """How far it may be from the reference after a stage; None where nothing says it."""
        return tolerance(self.backend, stage, source, self.device) if self.judged else None

    def close(self) -> None:
        """Release what the subject holds."""
