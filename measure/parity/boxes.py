"""Detections compared with the reference's: boxes lost, added and moved, and how well both agree."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from onestream.measure.parity.answers import Answers, Tally, Verdicts
from onestream.measure.parity.report import BoxFigures, Flip
from onestream.measure.parity.subject import Outputs
from onestream.measure.same_objects import Found, compare
from onestream.postprocess.options import Detection
from onestream.postprocess.postprocessing import open_postprocess
from onestream.preprocess import Definition
from onestream.preprocess.geometry import Size

EQUAL_IOU = 0.99
MOVED_PX = 1.0
NOTHING = "nothing"


class Objects(Answers):
    """Boxes in pixels of the picture, made by the pipeline's own postprocessing."""

    # Candidates are in the order of their scores: one that changes its place would be compared with another.
    compares_outputs = False

    def __init__(self, options: Detection, definition: Definition, labels: Sequence[str] | None) -> None:
        self._postprocess = open_postprocess(options, definition, labels=labels)
        self._most = options.max_detections

    def read(self, outputs: Outputs, picture_hw: Size) -> Outputs:
        """See ``Answers.read``."""
        (answer,) = self._postprocess(dict(outputs), [picture_hw])
        return answer

    def tally(self) -> Tally:
        """See ``Answers.tally``."""
        return _Boxes(self._most)


class _Boxes(Tally):
    def __init__(self, most: int) -> None:
        self._most = most
        self._answers: list[tuple[Found, Found]] = []
        self._flips: list[Flip] = []
        self._lost = self._added = self._moved = self._equal = 0
        self._farthest_px = 0.0

    def add(self, photo: str, form: str, expected: Outputs, got: Outputs) -> None:
        one, other = Found.of(expected), Found.of(got)
        self._answers.append((one, other))
        compared = compare(one, other)
        self._lost += len(compared.only_one)
        self._added += len(compared.only_other)
        self._moved += sum(pair.moved_px > MOVED_PX for pair in compared.same)
        self._equal += sum(pair.iou >= EQUAL_IOU for pair in compared.same)
        self._farthest_px = max([self._farthest_px, *(pair.moved_px for pair in compared.same)])
        became = compared.became
        changes = [(one.text(i), other.text(became[i]) if i in became else NOTHING) for i in compared.only_one]
        changes += [(NOTHING, other.text(j)) for j in compared.only_other if j not in became.values()]
        self._flips += [Flip(photo=photo, form=form, expected=before, got=after) for before, after in changes]

    def verdicts(self) -> Verdicts:
        if not self._answers:
            return Verdicts()
        ap = agreement_ap(self._answers, self._most)
        figures = BoxFigures(
            expected=sum(len(one) for one, _ in self._answers),
            lost=self._lost,
            added=self._added,
            moved=self._moved,
            equal=self._equal,
            farthest_px=round(self._farthest_px, 3),
            agreement_ap=None if ap is None else round(ap, 6),
        )
        return Verdicts(figures.expected, self._flips, figures)


def ap_installed() -> bool:
    """Whether ``agreement_ap`` can be computed."""
    try:
        import pycocotools.cocoeval  # noqa: F401
    except ImportError:
        return False
    return True


def agreement_ap(answers: Sequence[tuple[Found, Found]], most: int) -> float | None:
    """COCO's average precision of the second detections of each pair, with the first taken as the truth.

    It is the mean over the classes of the truth and IoU thresholds from 0.5 to 0.95, with at most ``most`` boxes of a
    class in a picture. None where the truth holds no box, or pycocotools is not installed.
    """
    if not any(len(one) for one, _ in answers) or not ap_installed():
        return None
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth, found = _coco_form([one for one, _ in answers]), _coco_form([other for _, other in answers])
    # The package prints what it does.
    with contextlib.redirect_stdout(io.StringIO()):
        sides = []
        for dataset in (truth, found):
            coco = COCO()
            coco.dataset = dataset
            coco.createIndex()
            sides.append(coco)
        evaluation = COCOeval(*sides, iouType="bbox")
        evaluation.params.catIds = [entry["id"] for entry in truth["categories"]]
        evaluation.params.maxDets = [most]
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, np.inf]], ["all"]
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"]  # by threshold, recall and class; -1 where the truth has none of a class
    return float(precision[precision > -1].mean())


def _coco_form(pictures: Sequence[Found]) -> dict[str, Any]:
    """A COCO dataset. Ids of annotations count from 1, since its matching takes 0 for *none*."""
    annotations: list[dict[str, Any]] = []
    for image_id, found in enumerate(pictures):
        for box, score, class_id in zip(found.boxes, found.scores, found.class_ids, strict=True):
            width, height = (float(side) for side in box[2:] - box[:2])
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image_id,
                    "category_id": int(class_id),
                    "bbox": [float(box[0]), float(box[1]), width, height],
                    "area": width * height,
                    "score": float(score),
                    "iscrowd": 0,
                }
            )
    return {
        "images": [{"id": image_id} for image_id in range(len(pictures))],
        "categories": [{"id": one} for one in sorted({entry["category_id"] for entry in annotations})],
        "annotations": annotations,
    }
