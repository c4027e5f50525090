"""Detections compared with the reference's: boxes lost, added and moved, and how well both agree."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.measure.parity.answers import Answers, Tally, Verdicts
from onestream.measure.parity.report import BoxFigures, Flip
from onestream.measure.parity.subject import Outputs
from onestream.postprocess.options import Detection
from onestream.postprocess.postprocessing import open_postprocess
from onestream.preprocess import Definition
from onestream.preprocess.geometry import Size
from onestream.wire.tensor_names import BOXES, CLASS_IDS, LABELS, SCORES

SAME_OBJECT_IOU = 0.5
"""COCO's and Pascal VOC's least overlap of two boxes that mean the same object."""
EQUAL_IOU = 0.99
MOVED_PX = 1.0
NOTHING = "nothing"

_Floats = npt.NDArray[np.float64]


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


@dataclass(frozen=True, slots=True)
class _Found:
    """The objects in one answer: ``boxes`` (n, 4), x0 y0 x1 y1 in pixels of the picture."""

    boxes: _Floats
    scores: _Floats
    class_ids: npt.NDArray[np.int32]
    labels: list[str]

    @classmethod
    def of(cls, answer: Outputs) -> _Found:
        return cls(
            answer[BOXES][0].astype(np.float64),
            answer[SCORES][0].astype(np.float64),
            answer[CLASS_IDS][0],
            [label.decode(errors="replace") for label in answer[LABELS][0]],
        )

    def __len__(self) -> int:
        return len(self.boxes)

    def text(self, index: int) -> str:
        return f"{self.labels[index]} {self.scores[index]:.2f}"


class _Boxes(Tally):
    def __init__(self, most: int) -> None:
        self._most = most
        self._pairs: list[tuple[_Found, _Found]] = []
        self._flips: list[Flip] = []
        self._matched = self._moved = self._equal = 0
        self._farthest_px = 0.0

    def add(self, photo: str, form: str, expected: Outputs, got: Outputs) -> None:
        one, other = _Found.of(expected), _Found.of(got)
        self._pairs.append((one, other))
        overlap = iou(one.boxes, other.boxes)
        same_class = one.class_ids[:, None] == other.class_ids[None]
        matched = list(best_pairs(np.where(same_class, overlap, 0), SAME_OBJECT_IOU))
        for i, j in matched:
            moved_px = farthest_corner_px(one.boxes[i], other.boxes[j])
            self._moved += moved_px > MOVED_PX
            self._equal += bool(overlap[i, j] >= EQUAL_IOU)
            self._farthest_px = max(self._farthest_px, moved_px)
        self._matched += len(matched)
        lost = _without(len(one), [i for i, _ in matched])
        added = _without(len(other), [j for _, j in matched])
        # An object that is lost where another of another class appears has become that.
        became = {lost[i]: added[j] for i, j in best_pairs(overlap[np.ix_(lost, added)], SAME_OBJECT_IOU)}
        for i in lost:
            got_text = other.text(became[i]) if i in became else NOTHING
            self._flips.append(Flip(photo=photo, form=form, expected=one.text(i), got=got_text))
        for j in added:
            if j not in became.values():
                self._flips.append(Flip(photo=photo, form=form, expected=NOTHING, got=other.text(j)))

    def verdicts(self) -> Verdicts:
        expected = sum(len(one) for one, _ in self._pairs)
        if not self._pairs:
            return Verdicts()
        ap = agreement_ap(self._pairs, self._most)
        figures = BoxFigures(
            expected=expected,
            lost=expected - self._matched,
            added=sum(len(other) for _, other in self._pairs) - self._matched,
            moved=self._moved,
            equal=self._equal,
            farthest_px=round(self._farthest_px, 3),
            agreement_ap=None if ap is None else round(ap, 6),
        )
        return Verdicts(expected, self._flips, figures)


def iou(one: _Floats, other: _Floats) -> _Floats:
    """Intersection over union of boxes (n, 4) and (m, 4), x0 y0 x1 y1: (n, m), 0 where both are empty."""
    start = np.maximum(one[:, None, :2], other[None, :, :2])
    sides = np.clip(np.minimum(one[:, None, 2:], other[None, :, 2:]) - start, 0, None)
    common = sides.prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (one, other)]
    union = areas[0][:, None] + areas[1][None] - common
    shared: _Floats = common / np.where(union > 0, union, 1)
    return shared


def best_pairs(overlap: _Floats, least: float) -> Iterator[tuple[int, int]]:
    """Rows and columns that belong together, each at most once: the largest overlap first, none below ``least``."""
    left = overlap.copy()
    while left.size:
        i, j = (int(index) for index in np.unravel_index(left.argmax(), left.shape))
        if left[i, j] < least:
            return
        yield i, j
        left[i], left[:, j] = -1, -1


def farthest_corner_px(one: _Floats, other: _Floats) -> float:
    """How far apart the corners of two boxes are, in pixels: the largest distance of the four."""
    x, y = np.abs(one - other).reshape(2, 2).max(axis=0)
    return float(np.hypot(x, y))


def ap_installed() -> bool:
    """Whether ``agreement_ap`` can be computed."""
    try:
        import pycocotools.cocoeval  # noqa: F401
    except ImportError:
        return False
    return True


def agreement_ap(pairs: Sequence[tuple[_Found, _Found]], most: int) -> float | None:
    """COCO's average precision of the second detections of each pair, with the first taken as the truth.

    It is the mean over the classes of the truth and IoU thresholds from 0.5 to 0.95, with at most ``most`` boxes of a
    picture. None where the truth holds no box, or pycocotools is not installed.
    """
    if not any(len(one) for one, _ in pairs) or not ap_installed():
        return None
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth, found = _coco_form([one for one, _ in pairs]), _coco_form([other for _, other in pairs])
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
    precision = evaluation.eval["precision"]  # -1 where the truth has none of a class
    return float(precision[precision > -1].mean())


def _coco_form(pictures: Sequence[_Found]) -> dict[str, Any]:
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


def _without(count: int, taken: Sequence[int]) -> list[int]:
    return sorted(set(range(count)) - set(taken))
