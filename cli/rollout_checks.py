"""Two served versions of a pipeline, compared on photos before one takes the place of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.client import Client, OnestreamError
from onestream.postprocess.same_objects import Found, holds_objects
from onestream.postprocess.same_objects import compare as compare_objects
from onestream.preprocess import Definition
from onestream.wire.tensor_names import CLASS_IDS, EMBEDDING, MASKS, PIXELS, SCORES, TEXTS

Answer = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Shown:
    """The model that shows the pixels of a version, and their definition."""

    model: str
    definition: Definition


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: its version, the names of its forms, what shows its pixels; None of a cascade; and what a CPU
    runs its network in.
    """

    version: int
    forms: tuple[str, str]
    shown: Shown | None
    precision: str = "float32"


@dataclass(frozen=True, slots=True)
class Kept:
    """How many of all best classes, or of all objects or lines that either answer holds, are the same, and in words."""

    what: str
    among: str
    same: int
    of: int

    @property
    def share(self) -> float:
        """From 0 to 1; 1 where neither answer holds an object."""
        return self.same / self.of if self.of else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        photos: that both versions answered.
        refused: photos that both refuse, as images of a kind that no version takes.
        kept: what the answers have in common; None where the outputs are neither classes, objects nor text.
        mean_difference: of the scores of the best classes or the same objects, or of all values.
        max_difference: the largest one.
        pixels: largest difference of the decoded and resized pixels, in levels; None where they were not compared.
        shows_pixels: whether both versions show them.
        answers: the new version's answer to each photo that it took.
        problems: what must not be, one line each.
    """

    photos: int
    refused: int
    kept: Kept | None
    mean_difference: float
    max_difference: float
    pixels: int | None
    shows_pixels: bool
    answers: dict[Path, Answer]
    problems: tuple[str, ...]

    def failures(self, *, least_top1: float) -> list[str]:
        """Why the new version must not be served; empty where it may."""
        found = list(self.problems)
        if self.photos == 0:
            found.append("no photo was answered by both versions")
        if self.kept is not None and self.kept.of == 0 and self.photos:
            found.append("no version finds an object or text in these photos, so that nothing was compared")
        if self.kept is not None and self.kept.share < least_top1:
            kept = f"the {self.kept.what} for {self.kept.share:.1%} of the {self.kept.among}"
            found.append(f"{kept}; asked for {least_top1:.1%}")
        if self.pixels:
            found.append(f"equal definitions, but pixels differ by up to {self.pixels} levels of 255")
        return found


def compare(client: Client, old: Side, new: Side, photos: Sequence[Path]) -> Comparison:
    """Send every photo to both versions, in both forms.

    Raises:
        OnestreamError: the server cannot be asked at all. What it says to a photo is part of the comparison.
    """
    shown = [side.shown for side in (old, new) if side.shown is not None]
    same_pixels = len(shown) == 2 and len({one.definition.pixels().digest for one in shown}) == 1
    problems: list[str] = []
    answers: dict[Path, Answer] = {}
    refused, kept, differences, pixels = 0, [], [], 0
    for photo in photos:
        before, after, fused = (ask(client, model, photo) for model in (old.forms[0], *new.forms))
        if isinstance(before, OnestreamError) or isinstance(after, OnestreamError):
            if isinstance(after, OnestreamError) and not isinstance(before, OnestreamError):
                problems.append(f"{photo.name}: version {new.version} does not answer: {after}")
            refused += 1
            continue
        if isinstance(fused, OnestreamError) or not agree(fused, after):
            problems.append(f"{photo.name}: the two forms of version {new.version} disagree")
        answers[photo] = after
        if before.keys() != after.keys() or any(before[name].dtype != after[name].dtype for name in before):
            problems.append(f"version {new.version} has other outputs: {_outputs(after)}, not {_outputs(before)}")
            break
        kept.append(what_is_kept(before, after))
        differences.append(difference(before, after))
        if same_pixels:
            one, other = (client.infer(side.model, photo)[PIXELS].astype(np.int16) for side in shown)
            pixels = max(pixels, int(np.abs(one - other).max()))
    return Comparison(
        photos=len(differences),
        refused=refused,
        kept=_sum(kept),
        mean_difference=float(np.mean(differences)) if differences else 0.0,
        max_difference=max(differences, default=0.0),
        pixels=pixels if same_pixels and differences else None,
        shows_pixels=len(shown) == 2,
        answers=answers,
        problems=tuple(problems),
    )


def ask(client: Client, model: str, photo: Path) -> Answer | OnestreamError:
    """A model's answer to a photo, or why there is none."""
    try:
        return dict(client.infer(model, photo))
    except OnestreamError as error:
        return error


def what_is_kept(one: Answer, other: Answer) -> Kept | None:
    """What two answers have in common; None where they hold neither classes, objects nor text."""
    if holds_objects(one) and holds_objects(other):
        compared = compare_objects(Found.of(one), Found.of(other))
        same = len(compared.same)
        what, among = ("same text", "lines found") if TEXTS in one else ("same object", "objects found")
        return Kept(what, among, same, same + len(compared.only_one) + len(compared.only_other))
    before, after = _best(one), _best(other)
    return None if before is None or after is None else Kept("same best class", "photos", int(before == after), 1)


def agree(one: Answer, other: Answer) -> bool:
    """Whether two answers say the same, where they hold classes, objects or text."""
    if one.keys() != other.keys():
        return False
    kept = what_is_kept(one, other)
    return kept is None or kept.same == kept.of


def _sum(found: Sequence[Kept | None]) -> Kept | None:
    kept = [one for one in found if one is not None]
    if not kept or len(kept) < len(found):
        return None
    return Kept(kept[0].what, kept[0].among, sum(one.same for one in kept), sum(one.of for one in kept))


def _best(answer: Answer) -> int | None:
    """The best class of an answer; None where it holds no classes."""
    # The classes of masks are listed in their order, whatever a picture shows.
    if EMBEDDING in answer or MASKS in answer:
        return None
    if CLASS_IDS in answer:
        return int(answer[CLASS_IDS].flat[0])
    first = next(iter(answer.values()))
    return int(first.argmax()) if first.ndim == 2 and first.dtype.kind == "f" else None


def difference(one: Answer, other: Answer) -> float:
    """The largest, of the scores of the best class or of the same objects, else of all values.

    It is infinite between unequal shapes.
    """
    if holds_objects(one):
        before, after = Found.of(one), Found.of(other)
        same = compare_objects(before, after).same
        return max((abs(float(before.scores[pair.one] - after.scores[pair.other])) for pair in same), default=0.0)
    if SCORES in one:
        return abs(float(one[SCORES].flat[0]) - float(other[SCORES].flat[0]))
    if any(one[name].shape != other[name].shape for name in one):
        return float("inf")
    numbers = [name for name in one if one[name].dtype.kind in "fiu"]
    return max(float(np.abs(one[name].astype(float) - other[name].astype(float)).max()) for name in numbers)


def _outputs(answer: Answer) -> str:
    return ", ".join(f"{name} {value.dtype}" for name, value in sorted(answer.items()))
