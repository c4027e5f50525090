"""What commands show of a pipeline's answer, whatever its kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from onestream.client import (
    Classification,
    Detections,
    Embedding,
    Outputs,
    Reading,
    Region,
    Regions,
    Result,
    Segmentation,
)
from onestream.wire.tensor_names import DEGREES, LABELS, SCORES, TEXTS

ResultT = TypeVar("ResultT", bound=Result)


@dataclass(frozen=True, slots=True)
class Line:
    """One class, region, mask or tensor: what it is, its score where it has one, and where it is or what it holds."""

    what: str
    score: float | None = None
    where: str = ""


def best(result: ResultT, top: int) -> ResultT:
    """A classification with its ``top`` best classes alone; any other result as it is."""
    if isinstance(result, Classification):
        return dataclasses.replace(result, labels=result.labels[:top])
    return result


def lines(result: Result, top: int) -> list[Line]:
    """The lines of an answer, at least one: its ``top`` best classes, all regions, masks or tensors."""
    match result:
        case Classification():
            return [Line(one.label, one.score) for one in best(result, top).labels]
        case Detections():
            return [Line(one.label, one.score, _box(one.box)) for one in result] or [Line("no objects")]
        case Embedding():
            return [_tensor("embedding", result.vector)]
        case Regions():
            nothing = "no text" if isinstance(result, Reading) else "nothing"
            return [_region(one, result) for one in result] or [Line(nothing)]
        case Segmentation():
            return _masks(result) or [Line("nothing")]
        case Outputs():
            return [_tensor(name, array) for name, array in sorted(result.tensors.items())] or [Line("nothing")]


def titles(result: Result | None) -> tuple[str, str]:
    """What ``what`` and ``where`` of a result's lines are; the second is empty where they have no ``where``."""
    match result:
        case Embedding() | Outputs():
            return "output", "values"
        case Segmentation():
            return "label", "of the picture"
        case Regions():
            return "text" if isinstance(result, Reading) else "label", "quad" if result.boxes is None else "box"
        case _:
            return "label", "box" if isinstance(result, Detections) else ""


def left_out(result: Result) -> str:
    """What was found and not looked at, as a sentence; empty where that is nothing."""
    if not isinstance(result, Regions) or not result.left_out:
        return ""
    return (
        f"{result.left_out} more were found and left out: "
        "the regions of a picture are bounded in number, by the pipeline's limits.max_regions and max_lines, and in "
        "pixels"
    )


def _region(one: Region, result: Regions) -> Line:
    """What the last stage says of a region; in brackets what those before it do."""
    before = "" if isinstance(result, Reading) else "; ".join(_earlier(one))
    what = one.label or "region"
    if result.boxes is None:
        where = " ".join(f"{x:.0f},{y:.0f}" for x, y in one.quad)
    else:
        (x0, y0), _, (x1, y1), _ = one.quad
        where = _box((x0, y0, x1, y1))
    return Line(f"{what} ({before})" if before else what, one.score, where)


def _earlier(one: Region) -> Iterator[str]:
    """What each earlier stage named a region, such as *detect: cup 0.96*."""
    for name in sorted(one.values):
        stage, _, kind = name.rpartition("_")
        if stage and kind in (LABELS, TEXTS, DEGREES):
            said = Region(one.quad, {LABELS: one.values[name], SCORES: one.values.get(f"{stage}_{SCORES}")})
            yield f"{stage}: {said}"


def _box(box: tuple[float, float, float, float]) -> str:
    return ", ".join(f"{edge:.0f}" for edge in box)


def _masks(result: Segmentation) -> list[Line]:
    """The part of the picture that is of each class, most first; those of which nothing is seen are left out."""
    names = dict(zip(result.class_ids, result.labels, strict=True))
    if len(result.masks) == len(result.class_ids):
        shares = dict(zip(result.class_ids, (result.probabilities() >= 128).mean(axis=(1, 2)), strict=True))
    else:
        classes = result.classes()
        shares = {class_id: float((classes == class_id).mean()) for class_id in result.class_ids}
    seen = sorted(shares, key=lambda class_id: -shares[class_id])
    return [Line(names[class_id], where=f"{shares[class_id]:.1%}") for class_id in seen if shares[class_id] > 0]


def _tensor(name: str, array: npt.NDArray[Any]) -> Line:
    values = f"{array.dtype} {list(array.shape)}"
    if array.size and np.issubdtype(array.dtype, np.number):
        values += f", from {array.min():.4g} to {array.max():.4g}"
    return Line(name, where=values)
