"""What the outputs of a detector mean: the fields of a pipeline file's ``postprocess`` that say so."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Family = Literal["yolo", "yolov5", "yolox", "ssd", "nanodet", "detr", "boxes"]

MOST_CANDIDATES = 3840
"""The most that TensorRT's TopK takes."""

ANCHORS = "anchors"
"""The constant of a network in which anchors are looked for."""

_TAKEN_BY: dict[str, tuple[Family, ...]] = {
    "activation": ("ssd", "nanodet", "detr"),
    "background": ("ssd",),
    "coding": ("ssd",),
    "variances": ("ssd",),
    "anchors": ("ssd",),
    "normalized": ("ssd", "boxes"),
    "box_format": ("boxes",),
    "reg_max": ("nanodet",),
    "cell_center": ("nanodet",),
}


class DetectorFamily(BaseModel):
    """What a detector's outputs mean. What their shapes show is not asked; a field of another family is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: Family = Field(
        description="what the network's outputs mean: *yolo* (v8 to v12); *yolov5* (v5 to v7, and YOLOX that decodes "
        "its grid itself); *yolox* (its raw grid); *ssd*; *nanodet*; *detr* (RT-DETR, D-FINE, RF-DETR); *boxes*, which "
        "are decoded and suppressed already"
    )
    activation: Literal["auto", "none", "sigmoid", "softmax"] = Field(
        default="auto",
        description="of *ssd*, *nanodet* and *detr*: what makes scores of the network's output; *auto* is *none* for a "
        "network that ends in softmax or sigmoid itself, and *sigmoid* for any other, but for *ssd*, which must say. "
        "With softmax the last class of *detr* is no object",
    )
    background: Literal["first", "last", "none"] = Field(
        default="first", description="of *ssd*: which of the classes is no object; the others count from 0"
    )
    coding: Literal["yxhw", "xywh", "yxyx", "xyxy"] = Field(
        default="yxhw",
        description="of *ssd*: the four values of a box. *yxhw* (TensorFlow) and *xywh* (Caffe, PyTorch) are encoded: "
        "its centre and size beside those of an anchor; *yxyx* and *xyxy* are corners, decoded in the network",
    )
    variances: tuple[
        Annotated[float, Field(gt=0, allow_inf_nan=False)], Annotated[float, Field(gt=0, allow_inf_nan=False)]
    ] = Field(default=(0.1, 0.2), description="of *ssd*: what encoded centres and encoded sizes are multiplied by")
    anchors: str | None = Field(
        default=None,
        description="of *ssd*: a file of NumPy (.npy), relative to the pipeline file, with centre and size of each "
        "anchor in the order of ``coding``; without it they are the network's third output or its constant "
        "``anchors``",
    )
    normalized: bool | None = Field(
        default=None,
        description="of *ssd* and *boxes*: whether anchors and corners are in parts of the sides of the network's "
        "input, not in its pixels; without it they are for *ssd*, and are not for *boxes*",
    )
    box_format: Literal["xyxy", "cxcywh"] = Field(
        default="xyxy",
        description="of *boxes*: the four values of a box, its corners, or its centre, width and height as RT-DETR of "
        "ultralytics 8.4.48 and later gives them",
    )
    reg_max: int = Field(
        default=7,
        ge=1,
        le=64,
        description="of *nanodet*: the largest distance, in strides; each side of a box has one value more than this. "
        "NanoDet-Plus and NanoDet-m have 7, NanoDet-g has 10",
    )
    cell_center: Literal["auto", "middle", "corner"] = Field(
        default="auto",
        description="of *nanodet*: from where in a cell the distances count; *auto* is *corner* for four strides, as "
        "in NanoDet-Plus, and *middle* for three",
    )

    @property
    def has_prototypes(self) -> bool:
        """Whether the network has a second output, (maps, height, width), and a value of each map for each box."""
        return False

    @property
    def more_values(self) -> int:
        """How many values the network gives for each box beside its sides, scores and class, for kinds that read them.

        They stand after all others.
        """
        return 0

    @model_validator(mode="after")
    def _fields_of_its_family(self) -> DetectorFamily:
        if self.more_values and self.normalized:
            raise ValueError("normalized would scale the boxes alone: their other values are in pixels of the input")
        for name, families in _TAKEN_BY.items():
            if name in self.model_fields_set and self.family not in families and getattr(self, name) != _default(name):
                raise ValueError(f"{name} is of {' and '.join(families)}; the family is {self.family}")
        return self


def _default(name: str) -> Any:
    return DetectorFamily.model_fields[name].default
