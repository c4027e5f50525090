"""One way's pixels of the regions that the reference finds: what a later stage of a cascade feeds its network."""

from __future__ import annotations

from dataclasses import dataclass

from onestream.measure.parity.cascade.ways import Way
from onestream.measure.parity.subject import Observation, Photo, Refused, Subject
from onestream.preprocess import BadImage, Definition
from onestream.preprocess.backends.base import Sample
from onestream.preprocess.definition import PreprocessingStage
from onestream.preprocess.geometry import Quads
from onestream.preprocess.tolerances import Source


@dataclass(frozen=True, slots=True, eq=False)
class PhotoRegion:
    """A region of a photo, (1, 4, 2), by its number among those that a stage takes, from 1."""

    photo: Photo
    number: int
    quad: Quads

    @property
    def name(self) -> str:
        """In reports."""
        return f"{self.photo.name}, region {self.number}"

    @property
    def source(self) -> Source:
        """The photo's."""
        return self.photo.source


class CutRegions(Subject[PhotoRegion]):
    """Regions cut, resized and normalized by one way, with the definition compiled once for each stage.

    Raises ``CannotCompile``.
    """

    def __init__(self, way: Way, definition: Definition) -> None:
        super().__init__(way.name, judged=way.judged, backend=way.backend)
        self._way = way
        self._cut = {stage: way.from_picture(definition.stage(stage)) for stage in definition.stages}

    def observe(self, region: PhotoRegion) -> Observation:
        """All four stages."""
        picture = self._way.picture(region.photo)
        samples: dict[PreprocessingStage, Sample] = {}
        for stage, cut in self._cut.items():
            try:
                (sample,) = cut.run(picture, region.quad)
            except Exception as error:  # as a library's on a picture that it did not turn upright
                raise Refused(f"{type(error).__name__}: {error}") from None
            if isinstance(sample, BadImage):
                raise Refused(str(sample))
            samples[stage] = sample
        return Observation(samples, decoded_hw=(picture.shape[0], picture.shape[1]))

    def close(self) -> None:
        """Close the way."""
        self._way.close()
