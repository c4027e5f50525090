"""How well two detectors agree, as COCO counts it. Computed by pycocotools, of the extra ``detect``."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from onestream.wire.comparing import POINT_SIGMAS, SEEN, Found
from onestream.wire.run_lengths import encode


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
    class in a picture; of objects with masks by the IoU of these, with points by their similarity. None where the truth
    holds no box, or no point that is shown, or pycocotools is not installed.
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
        points = answers[0][0].points
        by = "segm" if answers[0][0].runs is not None else "bbox" if points is None else "keypoints"
        evaluation = COCOeval(*sides, iouType=by)
        if points is not None and points.shape[1] != len(POINT_SIGMAS):
            evaluation.params.kpt_oks_sigmas = np.full(points.shape[1], 1 / points.shape[1])
        evaluation.params.catIds = [entry["id"] for entry in truth["categories"]]
        evaluation.params.maxDets = [most]
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, np.inf]], ["all"]
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"]  # by threshold, recall and class; -1 where the truth has none of a class
    counted = precision[precision > -1]
    return float(counted.mean()) if counted.size else None


def _coco_form(pictures: Sequence[Found]) -> dict[str, Any]:
    """A COCO dataset. Ids of annotations count from 1, since its matching takes 0 for *none*."""
    annotations: list[dict[str, Any]] = []
    for image_id, found in enumerate(pictures):
        for place, (box, score, class_id) in enumerate(zip(found.boxes, found.scores, found.class_ids, strict=True)):
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
            if found.runs is not None:
                size = [int(found.runs[place].sum()), 1]
                annotations[-1]["segmentation"] = {"size": size, "counts": encode(found.runs[place])}
            if found.points is not None:
                points = [(x, y, int(sure >= SEEN)) for x, y, sure in found.points[place].tolist()]
                annotations[-1] |= {"keypoints": sum(points, ()), "num_keypoints": sum(point[2] for point in points)}
    return {
        # Sides are read of pictures with masks, and used of none.
        "images": [{"id": image_id, "height": 1, "width": 1} for image_id in range(len(pictures))],
        "categories": [{"id": one} for one in sorted({entry["category_id"] for entry in annotations})],
        "annotations": annotations,
    }
