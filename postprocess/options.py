"""The options of each kind of postprocessing: the section ``postprocess`` of a pipeline file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from onestream.postprocess.detector_family import MOST_CANDIDATES, DetectorFamily
from onestream.postprocess.labels import COCO_IDS
from onestream.postprocess.parameters import RequestParameter
from onestream.postprocess.text.reading_order import reading_order
from onestream.wire.tensor_names import SCORES, TEXTS

Level = Annotated[int, Field(ge=0, le=255)]

MOST_MASK_CLASSES = 255
"""Classes of a segmentation: the level above theirs says that the network did not see a pixel."""

MOST_PROBABILITY_MASKS = 8
"""Of one picture: each is a file of its own, of as many pixels as the picture."""


def _one_line(name: str) -> str:
    if not name.strip() or name.splitlines() != [name]:
        raise ValueError("a class needs a name on one line")
    return name


Labels = str | Annotated[tuple[Annotated[str, AfterValidator(_one_line)], ...], Field(min_length=1)] | None
"""The names of a network's classes, in their order, or where they are."""


class Options(BaseModel):
    """Base of the kinds: frozen, no unknown fields.

    ``takes_image_size``: whether results depend on the size of the picture, beside the network's outputs.
    ``takes_long``: whether results take so long that one process for all cores would hold the others up.
    ``leaves_with_pictures``: whether results leave beside the pictures of a video that they are drawn into.
    ``says_left_out``: whether the answer says how many regions were left out.
    Of a cascade's stages: ``finds_regions`` in a picture, for later stages, which ``finds_lines``
    of text; ``takes_regions``, so that a later stage
    may end in it; ``turns_regions``, so that those after it take them turned; ``kind_of_cascade`` is the kind
    of one that ends in it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    takes_image_size: ClassVar[bool] = False
    takes_long: ClassVar[bool] = False
    leaves_with_pictures: ClassVar[bool] = False
    says_left_out: ClassVar[bool] = False
    finds_regions: ClassVar[bool] = False
    finds_lines: ClassVar[bool] = False
    takes_regions: ClassVar[bool] = False
    turns_regions: ClassVar[bool] = False
    kind_of_cascade: ClassVar[str] = "regions"

    @property
    def request_parameters(self) -> tuple[RequestParameter, ...]:
        """The options that one request may set, and their bounds: none of most kinds."""
        return ()

    def keeps(self, answer: Mapping[str, npt.NDArray[Any]]) -> bool:  # noqa: ARG002 (most keep every region)
        """Whether a region of which a stage of a cascade gives this has a row in the cascade's answer."""
        return True

    def order(self, quads: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """In which order the regions that a first stage found, and later ones may have turned, are told."""
        return np.arange(len(quads))


class Classification(Options):
    """The best classes of a network with one output (batch, classes)."""

    takes_regions: ClassVar[bool] = True

    kind: Literal["classification"] = "classification"
    top_k: int = Field(default=5, ge=1, description="how many of the best classes are returned")
    activation: Literal["auto", "softmax", "none"] = Field(
        default="auto",
        description="*softmax* makes scores that sum to 1 of logits or of their logarithms; *none* returns the "
        "network's output as it is; *auto* is *none* for a network that ends in softmax or sigmoid itself, and "
        "*softmax* for any other",
    )
    labels: Labels = Field(
        default=None,
        description="*imagenet*, *coco*, a file with one name a line, relative to the pipeline file, or the names "
        "themselves; without it class ids serve as names",
    )

    @property
    def request_parameters(self) -> tuple[RequestParameter, ...]:
        """See ``Options.request_parameters``."""
        return (RequestParameter("top_k", 1, self.top_k, is_whole=True),)


class Embedding(Options):
    """What the network makes of a picture as one vector, from a network with one output (batch, values)."""

    takes_regions: ClassVar[bool] = True

    kind: Literal["embedding"] = "embedding"
    normalize: bool = Field(
        default=True, description="divide each vector by its length (L2), so that a dot product is the cosine"
    )


class Segmentation(Options):
    """What each pixel of the picture shows, from a network with one output (batch, classes, height, width)."""

    takes_image_size: ClassVar[bool] = True
    takes_long: ClassVar[bool] = True

    kind: Literal["segmentation"] = "segmentation"
    output: Literal["classes", "probabilities"] = Field(
        default="classes",
        description="*classes*: one mask, whose levels are the best classes; *probabilities*: one mask for each class, "
        "with levels of 0 to 255",
    )
    activation: Literal["auto", "softmax", "sigmoid", "none"] = Field(
        default="auto",
        description="what makes probabilities of the network's output; *auto* is *none* for a network that ends in "
        "softmax or sigmoid itself; for any other it is *softmax*, and *sigmoid* where there is one class",
    )
    classes: tuple[Annotated[int, Field(ge=0, le=MOST_MASK_CLASSES - 1)], ...] | None = Field(
        default=None,
        min_length=1,
        max_length=MOST_PROBABILITY_MASKS,
        description="of *probabilities* only: the classes that get a mask; without it every class, which is for "
        f"networks of at most {MOST_PROBABILITY_MASKS}",
    )
    labels: Labels = Field(
        default=None,
        description="a file with one name a line in the order of the network's classes, relative to the pipeline file, "
        "or the names themselves; without it class ids serve as names",
    )

    @model_validator(mode="after")
    def _classes_get_masks(self) -> Segmentation:
        if self.classes is not None and self.output != "probabilities":
            raise ValueError("classes says which probabilities leave; it takes output: probabilities")
        if self.classes is not None and len(set(self.classes)) < len(self.classes):
            raise ValueError(f"name each class once, got {list(self.classes)}")
        return self


class Raw(Options):
    """The network's outputs as they are."""

    kind: Literal["raw"] = "raw"


class ColorBackground(Options):
    """One colour."""

    kind: Literal["color"] = "color"
    rgb: tuple[Level, Level, Level] = Field(default=(0, 177, 64), description="[red, green, blue]")


class BlurBackground(Options):
    """The picture itself, blurred."""

    kind: Literal["blur"] = "blur"
    radius: int = Field(default=28, ge=12, le=512, description="about the standard deviation, in pixels of the picture")


class PictureBackground(Options):
    """An image file. It is scaled to cover the picture."""

    kind: Literal["picture"] = "picture"
    path: str = Field(description="relative to the pipeline file")


AnyBackground = ColorBackground | BlurBackground | PictureBackground


class Matte(Options):
    """Which pixels belong to a person, from a network with one output (batch, height, width) of probabilities."""

    kind: Literal["matte"] = "matte"
    softness: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="the range of probabilities around one half that stays transparent in parts; 1 keeps them as they "
        "are, less makes edges harder",
    )
    background: AnyBackground = Field(
        default=BlurBackground(), discriminator="kind", description="what a composed video shows behind persons"
    )


class Detection(DetectorFamily, Options):
    """Objects and their boxes, from the outputs of a detector."""

    takes_image_size: ClassVar[bool] = True
    leaves_with_pictures: ClassVar[bool] = True
    finds_regions: ClassVar[bool] = True

    kind: Literal["detection"] = "detection"
    score_threshold: float = Field(default=0.25, ge=0, lt=1, description="a box must have a score above this")
    suppression: Literal["auto", "by_class", "across_classes", "none"] = Field(
        default="auto",
        description="which boxes remove others that they overlap: those of the same class, or all; *auto* is *none* "
        "for *detr* and *boxes*, and *by_class* for any other family",
    )
    iou_threshold: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="a box is removed where its intersection with a better one, divided by their union, is above this",
    )
    max_detections: int = Field(default=100, ge=1, le=MOST_CANDIDATES, description="the most boxes of a picture")
    max_candidates: int = Field(
        default=300,
        ge=1,
        le=MOST_CANDIDATES,
        description="the network's best boxes, before any is removed; the graph itself chooses them",
    )
    labels: Labels = Field(
        default=None,
        description="*coco*, a file with one name a line in the order of the network's classes, relative to the "
        "pipeline file, or the names themselves; without it class ids serve as names",
    )
    class_ids: Literal["coco91"] | tuple[Annotated[int, Field(ge=0, le=2**31 - 1)], ...] | None = Field(
        default=None,
        description="the id of each of the network's classes, for ids that have gaps; *coco91* are those of COCO's "
        "files; without it they count from 0",
    )

    @property
    def id_of_class(self) -> tuple[int, ...] | None:
        """The id of each of the network's classes; None where they count from 0."""
        return COCO_IDS if self.class_ids == "coco91" else self.class_ids

    @property
    def suppresses(self) -> Literal["by_class", "across_classes", "none"]:
        """``suppression`` with *auto* decided."""
        if self.suppression != "auto":
            return self.suppression
        return "none" if self.family in ("detr", "boxes") else "by_class"

    @property
    def request_parameters(self) -> tuple[RequestParameter, ...]:
        """See ``Options.request_parameters``; without suppression there is no ``iou_threshold``."""
        overlap = () if self.suppresses == "none" else (RequestParameter("iou_threshold", 0, 1),)
        most = RequestParameter("max_detections", 1, self.max_detections, is_whole=True)
        return (RequestParameter("score_threshold", 0, 1), *overlap, most)


class TextLines(Options):
    """Where text is, from a network with one output (batch, 1, height, width) of probabilities, as DB gives it.

    Differentiable binarization: https://arxiv.org/abs/1911.08947. Its networks mark a shrunken core of each line.
    """

    takes_image_size: ClassVar[bool] = True
    says_left_out: ClassVar[bool] = True
    finds_regions: ClassVar[bool] = True
    finds_lines: ClassVar[bool] = True

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


class Rotation(Options):
    """How far the picture is turned, from a classifier whose classes are angles: one output (batch, classes)."""

    takes_regions: ClassVar[bool] = True
    turns_regions: ClassVar[bool] = True

    kind: Literal["rotation"] = "rotation"
    degrees: tuple[Literal[0, 90, 180, 270], ...] = Field(
        min_length=2, description="of each class: by how much what is seen is turned clockwise"
    )
    min_score: float = Field(default=0.9, ge=0, le=1, description="below this score the answer is 0 degrees")
    activation: Literal["auto", "softmax", "none"] = Field(
        default="auto",
        description="*softmax* makes scores that sum to 1 of logits; *auto* is *none* for a network that ends in "
        "softmax or sigmoid itself, and *softmax* for any other",
    )

    @model_validator(mode="after")
    def _each_angle_once(self) -> Rotation:
        if len(set(self.degrees)) < len(self.degrees):
            raise ValueError(f"name each angle once, got {list(self.degrees)}")
        return self


class Text(Options):
    """The text of a line, from a recognizer with one output (batch, steps, classes) for CTC; class 0 is the blank."""

    takes_regions: ClassVar[bool] = True
    kind_of_cascade: ClassVar[str] = "reading"

    kind: Literal["text"] = "text"
    min_score: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="of a stage of a cascade: a region whose text has a lower score, or no character, has no row",
    )
    characters: str | None = Field(
        default=None,
        description="a file with one character a line in the order of the network's classes from 1 on, relative to the "
        "pipeline file; without it the network's own: ``character`` in its metadata. A class after the last is a space",
    )
    character_scores: bool = Field(
        default=False,
        description="return the score of each character beside that of the text; not in a stage of a cascade",
    )

    def keeps(self, answer: Mapping[str, npt.NDArray[Any]]) -> bool:
        """See ``Options.keeps``."""
        return bool(answer[TEXTS][0, 0]) and bool(answer[SCORES][0, 0] >= self.min_score)


AnyPostprocess = Classification | Detection | Embedding | Matte | Raw | Rotation | Segmentation | Text | TextLines

_ANY: TypeAdapter[AnyPostprocess] = TypeAdapter(Annotated[AnyPostprocess, Field(discriminator="kind")])


def read_postprocess(options_json: str) -> AnyPostprocess:
    """The postprocessing from the parameter of a model's configuration."""
    return _ANY.validate_json(options_json)
