"""What was measured, as values: ready for JSON, and judged by the tolerances table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from onestream.preprocess.backends.base import ON_CPU, BackendName, Device
from onestream.preprocess.definition import PreprocessingStage
from onestream.serving.built.certificate import Figures

_WHOLE: Sequence[PreprocessingStage] = ("decode", "resize", "crop", "normalize")
_REGIONS: Sequence[PreprocessingStage] = ("region", "resize", "crop", "normalize")


def stages_of(kind: Kind) -> Sequence[PreprocessingStage]:
    """The stages of what is compared, in order: a region is cut where a picture is decoded."""
    return _REGIONS if kind == "region" else _WHOLE


_FROZEN = ConfigDict(frozen=True, extra="forbid")

Kind = Literal["photo", "frame", "region"]
"""What is compared, one by one."""


class LogitFigures(BaseModel):
    """How far the network's outputs are from those for the reference's pixels, in the outputs' own unit."""

    model_config = _FROZEN

    max: float
    mean: float
    percentile_99_9: float


class Flip(BaseModel):
    """A prediction that is another than the reference's: of a photo, frame or region, or of something found in it.

    An object is named with its score, a region by what is said of it, or by its place; *nothing* stands for one that is
    lost or added. ``form`` is the served model, or
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


class RegionFigures(BaseModel):
    """Regions of answers against the reference's, of all photos and all forms: lines of text, or a cascade's regions.

    Two are the same where their quadrilaterals have an IoU of at least 0.5, whatever is said of them; each is of one
    other at most. ``expected`` are the reference's; ``lost`` of those have none, ``added`` are of none. ``mean_iou``
    and ``least_iou`` are those of the same ones, None where there are none. Of ``otherwise`` of these another text,
    class or direction is said; None where nothing is said of any.
    """

    model_config = _FROZEN

    expected: int
    lost: int
    added: int
    mean_iou: float | None
    least_iou: float | None
    otherwise: int | None


class TextFigures(BaseModel):
    """What is read of the same lines, against the reference: ``equal`` of ``lines`` texts are.

    ``edits`` is in how many characters the others differ in all (Levenshtein), of ``characters`` of the reference's.
    """

    model_config = _FROZEN

    lines: int
    equal: int
    edits: int
    characters: int


class PictureFigures(BaseModel):
    """The patches of a picture against the reference's.

    ``equal`` in every bit, with the same grid and count of tokens; ``within`` also where the tolerances table allows a
    difference, of files that decoders convert. ``levels`` and ``values`` are the largest differences of pixels and of
    normalized values, None where the grids differ. A grid is frames, and patches down and across.
    """

    model_config = _FROZEN

    photo: str
    equal: bool
    within: bool
    levels: float | None
    values: float | None
    grid: tuple[int, int, int]
    expected_grid: tuple[int, int, int]
    tokens: int
    expected_tokens: int


class SubjectReport(BaseModel):
    """One subject against the reference.

    ``photos`` is the number of photos, frames or regions compared; ``stages`` are the figures of those stages that the
    subject shows, ``allowed`` the bounds of those that have any, in words. ``other_shape`` counts the photos that have
    another shape after a stage, ``refused`` says why a photo that the reference takes has no result. ``predictions``
    counts the best classes or texts that were compared, or the reference's boxes or regions, over all ``forms`` of a
    served pipeline; ``boxes``, ``regions`` and ``texts`` are the figures of these. ``looks_like`` names the usual
    mistake that would make what others' code feeds a network, where one would. ``pictures`` are the figures of patches.
    ``backend`` and ``device`` name the entries of the tolerances table that judged it.
    """

    model_config = _FROZEN

    name: str
    judged: bool
    backend: BackendName = ON_CPU
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
    regions: RegionFigures | None = None
    texts: TextFigures | None = None
    looks_like: str = ""
    pictures: list[PictureFigures] = []

    @property
    def within(self) -> bool:
        """Whether the table allows all of it; what is not judged always is."""
        exact = not self.other_shape and not self.refused
        exact = exact and all(one.within for one in self.stages.values()) and all(one.within for one in self.pictures)
        return exact or not self.judged


class Report(BaseModel):
    """A parity report, of a pipeline, of one stage of a cascade, or of a cascade from picture to answer.

    ``kind`` is what ``photos`` are: photos, regions of photos that a later stage of a cascade takes, or frames of
    clips, of which ``colors`` says by file how they become RGB. ``definition_digest`` is empty from picture to answer,
    where every stage has its own.
    ``bad_images`` are those that the reference refuses, with the reason: nothing can be compared with them.
    ``problems`` make the whole report fail, ``not_compared`` says why something is missing from it.
    """

    model_config = _FROZEN

    pipeline: str
    kind: Kind = "photo"
    colors: dict[str, str] = {}
    definition_digest: str
    versions: dict[str, str]
    photos: list[str]
    bad_images: dict[str, str]
    problems: list[str]
    not_compared: dict[str, str]
    subjects: list[SubjectReport]

    @property
    def reports(self) -> Sequence[Report]:
        """Itself: see ``CascadeReport.reports``."""
        return [self]

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

    def content(self) -> dict[str, Any]:
        """The report for JSON, with ``within`` of the whole and of each subject beside their fields."""
        content = self.model_dump(mode="json") | {"within": self.within}
        for subject, fields in zip(self.subjects, content["subjects"], strict=True):
            fields["within"] = subject.within
        return content

    def text(self) -> str:
        """The report as JSON."""
        return json.dumps(self.content(), indent=2)


class CascadeReport(BaseModel):
    """The reports on a cascade: one for each of its ``stages``, by name, and one from picture to answer.

    A later stage is given the regions that the reference finds, so that a difference is seen where it is made. A stage
    that no region of these photos reaches is left out; ``whole.not_compared`` says so.
    """

    model_config = _FROZEN

    pipeline: str
    stages: dict[str, Report]
    whole: Report

    @property
    def reports(self) -> Sequence[Report]:
        """All of them, in the order of the cascade."""
        return [*self.stages.values(), self.whole]

    @property
    def within(self) -> bool:
        """Whether all of them are."""
        return all(report.within for report in self.reports)

    @property
    def judges(self) -> bool:
        """Whether any of them judges anything."""
        return any(report.judges for report in self.reports)

    @property
    def not_compared(self) -> dict[str, str]:
        """Why something is missing, from any of them."""
        return {name: reason for report in self.reports for name, reason in report.not_compared.items()}

    def flips(self, *, judged: bool) -> list[Flip]:
        """Those of all of them."""
        return [flip for report in self.reports for flip in report.flips(judged=judged)]

    def below_ap(self, least: float) -> list[SubjectReport]:
        """Those of all of them."""
        return [subject for report in self.reports for subject in report.below_ap(least)]

    def text(self) -> str:
        """The reports as JSON."""
        stages = {name: report.content() for name, report in self.stages.items()}
        content = {"pipeline": self.pipeline, "within": self.within, "stages": stages, "whole": self.whole.content()}
        return json.dumps(content, indent=2)
