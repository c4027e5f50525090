"""The objects in a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from onestream.postprocess import BadPipeline
from onestream.postprocess.detector_family import MOST_CANDIDATES, DetectorFamily
from onestream.postprocess.kinds.base import Labels, Opening, Options, ParitySection, Postprocess, Tensors, names_of
from onestream.postprocess.labels import COCO_IDS, names_in
from onestream.postprocess.network import NetworkClasses
from onestream.postprocess.parameters import NO_PARAMETERS, Parameters, RequestParameter
from onestream.preprocess import Definition
from onestream.preprocess.geometry import Mapping, Size
from onestream.preprocess.plan import Planner
from onestream.wire.tensor_names import BOXES, CANDIDATES, CLASS_IDS, IMAGE_SIZE, LABELS, LEFT_OUT, SCORES

if TYPE_CHECKING:
    from onestream.postprocess.agreement import Agreement
    from onestream.postprocess.detection.detect import Detections
    from onestream.postprocess.detection.drawing import Lines
    from onestream.postprocess.frames import FrameWork, GpuFrames
    from onestream.preprocess.cuda.device import Device
    from onestream.preprocess.video.common.color import ColorRule


class Detector(DetectorFamily, Options):
    """Base of the kinds that find objects and their boxes, from the outputs of a detector."""

    takes_image_size: ClassVar[bool] = True
    names_objects: ClassVar[bool] = True
    takes_one_size: ClassVar[bool] = True
    loops: ClassVar[tuple[str, ...]] = ("onestream.postprocess.detection.drawing",)
    leaves_with_pictures: ClassVar[bool] = True
    finds_regions: ClassVar[bool] = True
    parity_section: ClassVar[ParitySection] = "boxes"
    network_gives: ClassVar[tuple[str, ...]] = CANDIDATES

    # Here for its place in their JSON.
    kind: str = ""
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
    def most_found(self) -> int:
        return self.max_detections

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

    @property
    def named_labels(self) -> tuple[str, Labels]:
        return "labels", self.labels

    @property
    def network_file(self) -> tuple[str, str] | None:
        return None if self.anchors is None else ("anchors", self.anchors)

    def labels_for(self, classes: NetworkClasses, labels: str | None) -> str | None:
        """See ``Options.labels_for``: there are as many names, and ids, as classes."""
        names, ids = None if labels is None else len(names_in(labels)), self.id_of_class
        for field, count in (("labels", names), ("class_ids", None if ids is None else len(ids))):
            if count is not None and classes.count is not None and count != classes.count:
                raise BadPipeline(
                    f"postprocess.{field} has {count} entries, the network has {classes.count} classes, if its family "
                    f"is {self.family}"
                )
            if count is not None and classes.largest is not None and classes.largest >= count:
                raise BadPipeline(
                    f"postprocess.{field} has {count} entries, and the network finds class {classes.largest} in the "
                    "package's photos"
                )
        if names is not None and ids is not None and names != len(ids):
            raise BadPipeline(f"postprocess.labels has {names} names, postprocess.class_ids {len(ids)} ids")
        return labels

    def agreement(self, pairs: Sequence[tuple[Tensors, Tensors]]) -> Agreement:
        """See ``Options.agreement``: COCO's average precision, too."""
        from onestream.postprocess.agreement import of_predictions
        from onestream.postprocess.average_precision import agreement_ap
        from onestream.wire.comparing import compare

        compared = [compare(self.kind, *pair) for pair in pairs]
        precision = agreement_ap([(one.one, one.other) for one in compared], self.max_detections)
        rounded = None if precision is None else round(precision, 6)
        return of_predictions(compared).model_copy(update={"average_precision": rounded})

    def frame_work(
        self, definition: Definition, read_file: Callable[[], bytes], *, rule: ColorRule, gpu: GpuFrames | None
    ) -> FrameWork:
        """See ``Options.frame_work``: boxes are drawn."""
        from onestream.postprocess.detection.drawing import DrawnBoxes

        return DrawnBoxes(rule, self.lines, from_gpu=gpu.taker() if gpu else None)

    def lines(self, results: Tensors) -> Lines | None:
        """The lines that are drawn into a frame beside the boxes: none of most kinds."""
        return None

    def angles(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32] | None:
        """By how much each candidate is turned, of kinds whose ``more_values`` (n, values) say so."""
        return None

    def read_more(
        self, values: npt.NDArray[np.float32], found: Detections, mapping: Mapping, *maps: npt.NDArray[np.float32]
    ) -> Tensors:
        """What the answer says beside boxes, of the further values of each object found, (n, values), and the maps."""
        return {}

    def prepare_gpu(self, device: Device) -> None:
        from onestream.postprocess.planes_gpu import prepare_taking

        prepare_taking(device)

    def open(self, opening: Opening) -> Postprocess:
        return _detector(self, opening.definition, opening.labels, opening.dropped, opening.full)


class Detection(Detector):
    """Objects and their boxes, from the outputs of a detector."""

    kind: Literal["detection"] = "detection"


def _detector(
    options: Detector,
    definition: Definition,
    labels: Sequence[str] | None,
    dropped: Callable[[int], None],
    full: Callable[[], None],
) -> Postprocess:
    from onestream.postprocess.detection.detect import detect

    names, id_of = names_of(labels), options.id_of_class
    known = labels if id_of is None else id_of
    ids = None if id_of is None else np.array(id_of, np.int32)
    # Pictures come in few sizes.
    planner = Planner(definition)
    bounds: dict[str, Any] = {
        "score_threshold": options.score_threshold,
        "iou_threshold": None if options.suppresses == "none" else options.iou_threshold,
        "max_detections": options.max_detections,
    }
    find = partial(
        detect, class_aware=options.suppresses == "by_class", classes_known=None if known is None else len(known)
    )

    def found_in(candidates: Sequence[npt.NDArray[Any]], size_hw: Size, parameters: Parameters) -> Tensors:
        boxes, scores, classes, *more = candidates
        mapping = planner.mapping(size_hw)
        angles = None
        for values in more[:1]:
            # Whatever is not finite of a candidate, it is dropped.
            boxes = np.where(np.isfinite(values).all(axis=1, keepdims=True), boxes, np.float32(np.nan))
            angles = options.angles(values)
        found = find(boxes, scores, classes, mapping, angles=angles, **{**bounds, **parameters})
        if found.dropped:
            dropped(found.dropped)
        # Fewer candidates are all that the network has.
        if found.is_full and len(scores) >= options.max_candidates:
            full()
        classes = found.classes
        class_ids = classes if ids is None else ids[classes]
        told = options.read_more(more[0][found.places], found, mapping, *more[1:]) if more else {}
        return {
            BOXES: found.boxes[None],
            SCORES: found.scores[None],
            CLASS_IDS: class_ids[None],
            LABELS: names(class_ids if labels is None else classes)[None],
            IMAGE_SIZE: np.array([size_hw], np.int32),
            LEFT_OUT: np.array([[found.left_out]], np.int32),
            **told,
        }

    def found_in_each(outputs: Tensors, sizes: Sequence[Size], parameters: Sequence[Parameters] = ()) -> list[Tensors]:
        candidates = zip(*(outputs[name] for name in options.network_gives), strict=True)
        own = parameters or [NO_PARAMETERS] * len(sizes)
        return [found_in(*one) for one in zip(candidates, sizes, own, strict=True)]

    return found_in_each
