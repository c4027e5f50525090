"""Two served versions of a pipeline, compared on photos before one takes the place of the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.client import Client, OnestreamError
from onestream.preprocess import Definition
from onestream.wire.comparing import Compared
from onestream.wire.comparing import compare as compare_answers
from onestream.wire.tensor_names import PIXELS

Answer = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Shown:
    """The model that shows the pixels of a version, their definition, and the inputs that are other pictures."""

    model: str
    definition: Definition
    pictures: tuple[str, ...] = ()

    def pixels(self, client: Client, photo: Path, inputs: Mapping[str, Any]) -> npt.NDArray[np.int16]:
        """Those of the photo."""
        beside = {name: inputs[name] for name in self.pictures}
        return client.infer(self.model, photo, inputs=beside)[PIXELS].astype(np.int16)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: its version, the names of its forms, the kind of its answers, what shows its pixels, None of a
    cascade; what a CPU runs its network in, and the names of the inputs that a request gives it beside the image.
    """

    version: int
    forms: tuple[str, str]
    kind: str
    shown: Shown | None
    precision: str = "float32"
    inputs: tuple[str, ...] = ()

    def check_inputs(self, given: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` where the inputs that go with each photo are not those that the version takes."""
        if given.keys() != {*self.inputs}:
            raise ValueError(
                f"version {self.version} takes {', '.join(self.inputs) or 'nothing'} beside each photo; got "
                f"{', '.join(given) or 'none'}: give each by --input NAME=VALUE"
            )


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
        kind: of the answers.
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

    kind: str
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
            found.append(f"{kept}; asked for {least_top1:.1%}, --least-top1")
        if self.pixels:
            found.append(f"equal definitions, but pixels differ by up to {self.pixels} levels of 255")
        return found


def compare(
    client: Client, old: Side, new: Side, photos: Sequence[Path], inputs: Mapping[str, Any] | None = None
) -> Comparison:
    """Send every photo to both versions, in both forms, with the same ``inputs`` of the network beside it.

    Raises:
        OnestreamError: the server cannot be asked at all. What it says to a photo is part of the comparison.
    """
    shown = [side.shown for side in (old, new) if side.shown is not None]
    same_pixels = len(shown) == 2 and len({one.definition.pixels().digest for one in shown}) == 1
    problems: list[str] = []
    answers: dict[Path, Answer] = {}
    refused, compared, pixels = 0, list[Compared](), 0
    for photo in photos:
        before, after, fused = (ask(client, model, photo, inputs) for model in (old.forms[0], *new.forms))
        if isinstance(before, OnestreamError) or isinstance(after, OnestreamError):
            if isinstance(after, OnestreamError) and not isinstance(before, OnestreamError):
                problems.append(f"{photo.name}: version {new.version} does not answer: {after}")
            refused += 1
            continue
        if isinstance(fused, OnestreamError) or not agree(new.kind, fused, after):
            problems.append(f"{photo.name}: the two forms of version {new.version} disagree")
        answers[photo] = after
        if before.keys() != after.keys() or any(before[name].dtype != after[name].dtype for name in before):
            problems.append(f"version {new.version} has other outputs: {_outputs(after)}, not {_outputs(before)}")
            break
        compared.append(compare_answers(new.kind, before, after))
        if same_pixels:
            one, other = (side.pixels(client, photo, inputs or {}) for side in shown)
            pixels = max(pixels, int(np.abs(one - other).max()))
    differences = [one.difference for one in compared]
    return Comparison(
        kind=new.kind,
        photos=len(compared),
        refused=refused,
        kept=_kept(compared),
        mean_difference=float(np.mean(differences)) if differences else 0.0,
        max_difference=max(differences, default=0.0),
        pixels=pixels if same_pixels and differences else None,
        shows_pixels=len(shown) == 2,
        answers=answers,
        problems=tuple(problems),
    )


def ask(client: Client, model: str, photo: Path, inputs: Mapping[str, Any] | None = None) -> Answer | OnestreamError:
    """A model's answer to a photo and the network's ``inputs`` beside it, or why there is none."""
    try:
        return dict(client.infer(model, photo, inputs=inputs))
    except OnestreamError as error:
        return error


def agree(kind: str | None, one: Answer, other: Answer) -> bool:
    """Whether two answers of a kind say the same, where they say something."""
    if one.keys() != other.keys():
        return False
    compared = compare_answers(kind, one, other)
    return len(compared.same) == compared.of


def _kept(found: Sequence[Compared]) -> Kept | None:
    if not found or not all(one.says for one in found):
        return None
    row = found[0].row
    among = f"{row.nouns[1]} found" if row.is_found else "photos"
    return Kept(f"same {row.nouns[0]}", among, sum(len(one.same) for one in found), sum(one.of for one in found))


def _outputs(answer: Answer) -> str:
    return ", ".join(f"{name} {value.dtype}" for name, value in sorted(answer.items()))
