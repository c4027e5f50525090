"""What was measured, as values: ready for JSON, and judged by the tolerances table."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict

from onestream.preprocess.backends.base import BackendName, Device
from onestream.preprocess.definition import PreprocessingStage
from onestream.serving.building.figures import Figures

_FROZEN = ConfigDict(frozen=True, extra="forbid")


class LogitFigures(BaseModel):
    """How far the network's outputs are from those for the reference's pixels, in the outputs' own unit."""

    model_config = _FROZEN

    max: float
    mean: float
    percentile_99_9: float


class Flip(BaseModel):
    """A prediction that is another than the reference's: the best class of a photo or frame, or an object in it.

    An object is named with its score; *nothing* stands for one that is lost or added. ``form`` is the served model, or
    empty.
    """

    model_config = _FROZEN

    photo: str
    form: str
    expected: str
    got: str


class BoxFigures(BaseModel):
    """A detector's boxes against the reference's, of all photos or frames and all forms.

    Two boxes are of the same object where their class is the same and their IoU at least 0.5; each box is of one other
    at most. ``expected`` are the reference's; ``lost`` of those have none, ``added`` are of none. Of those that have
    one, ``moved`` have a corner more than a pixel of the picture away, the farthest ``farthest_px``; ``equal`` have an
    IoU of at least 0.99. ``agreement_ap`` is COCO's average precision (IoU 0.5 to 0.95) with the reference's boxes
    taken as the truth; None where the reference has no box, or pycocotools is not installed.
    """

    model_config = _FROZEN

    expected: int
    lost: int
    added: int
    moved: int
    equal: int
    farthest_px: float
    agreement_ap: float | None


class SubjectReport(BaseModel):
    """One subject against the reference.

    ``photos`` is the number of photos or frames compared; ``stages`` are the figures of those stages that the subject
    shows, ``allowed`` the bounds of those that have any, in words. ``other_shape`` counts the photos that have another
    shape after a stage, ``refused`` says why a photo that the reference takes has no result. ``predictions`` counts the
    best classes that were compared, or the reference's boxes, over all ``forms`` of a served pipeline; ``boxes`` are
    the figures of the latter. ``looks_like`` names the usual mistake that would make what others' code feeds a
    network, where one would.
    ``backend`` and ``device`` name the entries of the tolerances table that judged it.
    """

    model_config = _FROZEN

    name: str
    judged: bool
    backend: BackendName = "dali"
    device: Device = "cpu"
    photos: int
    stages: dict[PreprocessingStage, Figures]
    allowed: dict[PreprocessingStage, str] = {}
    other_shape: dict[PreprocessingStage, int]
    refused: dict[str, str]
    logits: LogitFigures | None
    predictions: int
    forms: list[str]
    flips: list[Flip]
    boxes: BoxFigures | None = None
    looks_like: str = ""

    @property
    def within(self) -> bool:
        """Whether the table allows all of it; what is not judged always is."""
        exact = not self.other_shape and not self.refused and all(one.within for one in self.stages.values())
        return exact or not self.judged


class Report(BaseModel):
    """A parity report.

    ``kind`` is what ``photos`` are: photos, or frames of clips, of which ``colors`` says by file how they become RGB.
    ``bad_images`` are those that the reference refuses, with the reason: nothing can be compared with them.
    ``problems`` make the whole report fail, ``not_compared`` says why something is missing from it.
    """

    model_config = _FROZEN

    pipeline: str
    kind: Literal["photo", "frame"] = "photo"
    colors: dict[str, str] = {}
    definition_digest: str
    versions: dict[str, str]
    photos: list[str]
    bad_images: dict[str, str]
    problems: list[str]
    not_compared: dict[str, str]
    subjects: list[SubjectReport]

    @property
    def within(self) -> bool:
        """Whether everything that is judged is within the tolerances table, and there is no problem."""
        return not self.problems and all(subject.within for subject in self.subjects)

    @property
    def judges(self) -> bool:
        """Whether there is anything to judge: where DALI is missing and no server is asked, there is not."""
        return any(subject.judged for subject in self.subjects)

    @property
    def compared(self) -> int:
        """How many photos the reference takes."""
        return len(self.photos) - len(self.bad_images)

    def flips(self, *, judged: bool) -> list[Flip]:
        """The flips of the subjects that are judged, or of the others."""
        return [flip for subject in self.subjects if subject.judged == judged for flip in subject.flips]

    def below_ap(self, least: float) -> list[SubjectReport]:
        """The judged subjects whose boxes agree with the reference's by less than an average precision."""
        judged = [subject for subject in self.subjects if subject.judged and subject.boxes is not None]
        return [one for one in judged if one.boxes and (ap := one.boxes.agreement_ap) is not None and ap < least]

    def text(self) -> str:
        """The report as JSON, with ``within`` of the whole and of each subject beside their fields."""
        content = self.model_dump(mode="json") | {"within": self.within}
        for subject, fields in zip(self.subjects, content["subjects"], strict=True):
            fields["within"] = subject.within
        return json.dumps(content, indent=2)
