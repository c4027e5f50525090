"""Two served versions of a pipeline, compared on photos before one takes the place of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.client import Client, OnestreamError
from onestream.preprocess import Definition
from onestream.wire.tensor_names import CLASS_IDS, PIXELS, SCORES

Answer = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: its version, the names of its forms, its preprocessing step, and its definition."""

    version: int
    forms: tuple[str, str]
    preprocess: str
    definition: Definition


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        photos: that both versions answered.
        refused: photos that both refuse, as images of a kind that no version takes.
        top1: share of photos with the same best class, 0 to 1; None where the outputs are no classes.
        mean_difference: of the best classes' scores, or of all values where there are no classes.
        max_difference: the largest one.
        pixels: largest difference of the decoded and resized pixels, in levels; None where the definitions differ.
        answers: the new version's answer to each photo that it took.
        problems: what must not be, one line each.
    """

    photos: int
    refused: int
    top1: float | None
    mean_difference: float
    max_difference: float
    pixels: int | None
    answers: dict[Path, Answer]
    problems: tuple[str, ...]

    def failures(self, *, least_top1: float) -> list[str]:
        """Why the new version must not be served; empty where it may."""
        found = list(self.problems)
        if self.photos == 0:
            found.append("no photo was answered by both versions")
        if self.top1 is not None and self.top1 < least_top1:
            found.append(f"the same best class for {self.top1:.1%} of the photos; asked for {least_top1:.1%}")
        if self.pixels:
            found.append(f"equal definitions, but pixels differ by up to {self.pixels} levels of 255")
        return found


def compare(client: Client, old: Side, new: Side, photos: Sequence[Path]) -> Comparison:
    """Send every photo to both versions, in both forms.

    Raises:
        OnestreamError: the server cannot be asked at all. What it says to a photo is part of the comparison.
    """
    same_pixels = old.definition.pixels().digest == new.definition.pixels().digest
    problems: list[str] = []
    answers: dict[Path, Answer] = {}
    refused, agreed, differences, pixels = 0, [], [], 0
    for photo in photos:
        before, after, fused = (ask(client, model, photo) for model in (old.forms[0], *new.forms))
        if isinstance(before, OnestreamError) or isinstance(after, OnestreamError):
            if isinstance(after, OnestreamError) and not isinstance(before, OnestreamError):
                problems.append(f"{photo.name}: version {new.version} does not answer: {after}")
            refused += 1
            continue
        if isinstance(fused, OnestreamError) or (best(fused) != best(after)):
            problems.append(f"{photo.name}: the two forms of version {new.version} disagree")
        answers[photo] = after
        if before.keys() != after.keys() or any(before[name].dtype != after[name].dtype for name in before):
            problems.append(f"version {new.version} has other outputs: {_outputs(after)}, not {_outputs(before)}")
            break
        agreed.append(best(before) == best(after))
        differences.append(difference(before, after))
        if same_pixels:
            one, other = (client.infer(side.preprocess, photo)[PIXELS].astype(np.int16) for side in (old, new))
            pixels = max(pixels, int(np.abs(one - other).max()))
    classes = all(best(answer) is not None for answer in answers.values())
    return Comparison(
        photos=len(differences),
        refused=refused,
        top1=float(np.mean(agreed)) if agreed and classes else None,
        mean_difference=float(np.mean(differences)) if differences else 0.0,
        max_difference=max(differences, default=0.0),
        pixels=pixels if same_pixels and differences else None,
        answers=answers,
        problems=tuple(problems),
    )


def ask(client: Client, model: str, photo: Path) -> Answer | OnestreamError:
    """A model's answer to a photo, or why there is none."""
    try:
        return dict(client.infer(model, photo))
    except OnestreamError as error:
        return error


def best(answer: Answer) -> int | None:
    """The best class of an answer; None where it holds no classes."""
    if CLASS_IDS in answer:
        return int(answer[CLASS_IDS].flat[0])
    first = next(iter(answer.values()))
    return int(first.argmax()) if first.ndim == 2 and first.dtype.kind == "f" else None


def difference(one: Answer, other: Answer) -> float:
    """Of the best scores where there are any, else the largest of all values; infinite between unequal shapes."""
    if SCORES in one:
        return abs(float(one[SCORES].flat[0]) - float(other[SCORES].flat[0]))
    if any(one[name].shape != other[name].shape for name in one):
        return float("inf")
    numbers = [name for name in one if one[name].dtype.kind in "fiu"]
    return max(float(np.abs(one[name].astype(float) - other[name].astype(float)).max()) for name in numbers)


def _outputs(answer: Answer) -> str:
    return ", ".join(f"{name} {value.dtype}" for name, value in sorted(answer.items()))
