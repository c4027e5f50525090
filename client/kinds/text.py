"""The text of one picture of a line, and how far one picture is turned: what stages that read text answer alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from onestream.client.errors import UnexpectedResponse
from onestream.client.kinds.base import Array, Line, Result, Schema, cell
from onestream.wire.tensor_names import CHARACTER_SCORES, DEGREES, SCORES, TEXTS


@dataclass(frozen=True, slots=True, eq=False)
class Text(Result):
    """The text of one picture of a line, empty where there is none, and its score, 0 to 1.

    ``character_scores`` is float32 with one score a character where the pipeline returns them.
    """

    text: str
    score: float
    character_scores: npt.NDArray[np.float32] | None = None

    kind: ClassVar[str] = "text"
    noun: ClassVar[str] = "texts"
    what: ClassVar[str] = "text"
    nothing: ClassVar[str] = "no text"
    nothing_found: ClassVar[str] = "No text."
    prints_texts: ClassVar[bool] = True
    is_short: ClassVar[bool] = True

    @classmethod
    def fields_of(cls, found: dict[str, Array], model: str) -> dict[str, Any]:
        (text,), (score,) = found[TEXTS].tolist(), found[SCORES].tolist()
        each = None
        if CHARACTER_SCORES in found:
            try:
                each = np.frombuffer(found[CHARACTER_SCORES][0], "<f4")
            except ValueError as error:
                raise UnexpectedResponse(
                    f"model {model!r} answered {CHARACTER_SCORES} of no float32: {error}"
                ) from None
        return {"text": text, "score": score, "character_scores": each}

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Text:
        each = said.get(CHARACTER_SCORES)
        packed = {} if each is None else {CHARACTER_SCORES: [np.array(one, "<f4").tobytes() for one in each]}
        return super(Text, cls).from_dict({**said, **packed})

    def values(self) -> dict[str, Any]:
        """See ``Result.values``. Scores of characters are a list."""
        each = {} if self.character_scores is None else {CHARACTER_SCORES: [self.character_scores.tolist()]}
        return {TEXTS: [self.text], SCORES: [self.score], **each}

    def schema(self, *, top: int = 1, is_flat: bool = False) -> Schema:
        each = {} if self.character_scores is None else {CHARACTER_SCORES: Any if is_flat else list[float]}
        return {"text": str, "score": float, **each}

    def records(self, *, is_flat: bool = False) -> list[dict[str, Any]]:
        record: dict[str, Any] = {"text": self.text, "score": self.score}
        if self.character_scores is not None:
            each = self.character_scores.tolist()
            record[CHARACTER_SCORES] = cell(each) if is_flat else each
        return [record]

    def summary(self) -> list[Line]:
        return [Line(self.text, self.score)] if self.text else []


@dataclass(frozen=True, slots=True)
class Rotation(Result):
    """How far what one picture shows is turned clockwise: 0, 90, 180 or 270 degrees, and the score of it, 0 to 1."""

    degrees: int
    score: float

    kind: ClassVar[str] = "rotation"
    noun: ClassVar[str] = "rotations"
    what: ClassVar[str] = "rotation"
    is_short: ClassVar[bool] = True

    @classmethod
    def fields_of(cls, found: dict[str, Array], model: str) -> dict[str, Any]:
        (degrees,), (score,) = found[DEGREES].tolist(), found[SCORES].tolist()
        return {"degrees": degrees, "score": score}

    def values(self) -> dict[str, Any]:
        return {DEGREES: [self.degrees], SCORES: [self.score]}

    def schema(self, *, top: int = 1, is_flat: bool = False) -> Schema:
        return {"degrees": int, "score": float}

    def records(self, *, is_flat: bool = False) -> list[dict[str, Any]]:
        return [{"degrees": self.degrees, "score": self.score}]

    def summary(self) -> list[Line]:
        return [Line(f"{self.degrees}°", self.score)]
