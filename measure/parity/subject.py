"""What is compared with the reference: one small interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.preprocess.backends.base import BackendName, Device, Sample
from onestream.preprocess.tolerances import Source, Stage

Pixels = npt.NDArray[np.uint8]
Outputs = Mapping[str, npt.NDArray[Any]]
"""A network's outputs by name, each with a batch of 1."""


class Refused(Exception):
    """A subject gives no result for a photo; the message says why."""


@dataclass(frozen=True, slots=True)
class Photo:
    """An encoded image, its name in reports, and how it is stored, which the tolerances distinguish."""

    name: str
    data: bytes
    source: Source


@dataclass(frozen=True, slots=True)
class Observation:
    """What a subject makes of one photo.

    ``stages`` holds the stages that can be seen from outside, as ``Definition.stage`` describes them. ``pixels`` are
    what a network is fed where there is no *crop* among them. ``outputs`` are the network's, where the subject ran one
    itself. ``top_ids`` are the best classes of those who name one, by their name.
    """

    stages: Mapping[Stage, Sample]
    pixels: Pixels | None = None
    outputs: Outputs | None = None
    top_ids: Mapping[str, int] = field(default_factory=dict)

    @property
    def network_pixels(self) -> Pixels | None:
        """What a network is fed, uint8 (height, width, channels); None where it cannot be seen."""
        return self.stages.get("crop") if self.pixels is None else self.pixels


class Subject(ABC):
    """Something that preprocesses photos.

    ``judged`` says whether the tolerances table holds for it; what others wrote is only shown. ``backend`` and
    ``device`` name its entries in the table.
    """

    def __init__(self, name: str, *, judged: bool, backend: BackendName = "dali", device: Device = "cpu") -> None:
        self.name, self.judged, self.backend, self.device = name, judged, backend, device

    @abstractmethod
    def observe(self, photo: Photo) -> Observation:
        """Process one photo. Raises ``Refused`` where there is no result."""

    def close(self) -> None:  # noqa: B027 (most subjects hold nothing)
        """Release what the subject holds."""
