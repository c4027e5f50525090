"""The text of a line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from onestream.postprocess import BadNetwork, BadPipeline
from onestream.postprocess.kinds.base import (
    Labels,
    Opening,
    Options,
    ParitySection,
    Postprocess,
    Tensors,
    count_bad,
    rows,
)
from onestream.postprocess.labels import labels_in, text_of
from onestream.postprocess.network import CHARACTERS_KEY, NetworkClasses, NetworkOutput
from onestream.postprocess.parameters import Parameters
from onestream.preprocess.geometry import Size
from onestream.wire.tensor_names import CHARACTER_SCORES, CTC, SCORES, TEXTS


class Text(Options):
    """The text of a line, from a recognizer with one output (batch, steps, classes) for CTC; class 0 is the blank."""

    takes_regions: ClassVar[bool] = True
    kind_of_cascade: ClassVar[str] = "reading"
    needs_output_sizes: ClassVar[bool] = True
    labels_have_spaces: ClassVar[bool] = True
    parity_section: ClassVar[ParitySection] = "texts"
    network_gives: ClassVar[tuple[str, ...]] = CTC

    kind: Literal["text"] = "text"
    min_score: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="of a stage of a cascade: a region whose text has a lower score, or no character, has no row",
    )
    characters: str | None = Field(
        default=None,
        description="a file with one character a line in the order of the network's classes from 1 on, relative to the "
        "pipeline file; without it the network's own: ``character`` in its metadata. A class after the last is a space",
    )
    character_scores: bool = Field(
        default=False,
        description="return the score of each character beside that of the text; not in a stage of a cascade",
    )

    def keeps(self, answer: Mapping[str, npt.NDArray[Any]]) -> bool:
        return bool(answer[TEXTS][0, 0]) and bool(answer[SCORES][0, 0] >= self.min_score)

    @property
    def named_labels(self) -> tuple[str, Labels]:
        return "characters", self.characters

    @property
    def not_in_a_stage(self) -> str:
        if self.character_scores:
            return "character_scores differ in number from region to region, so they are not for a stage"
        return ""

    def open(self, opening: Opening) -> Postprocess:
        return _reader(self, opening.labels, opening.dropped)

    @property
    def not_given(self) -> tuple[str, ...]:
        return () if self.character_scores else (CHARACTER_SCORES,)

    def labels_for(self, classes: NetworkClasses, labels: str | None) -> str:
        """See ``Options.labels_for``: the network's own without a file; a class after the last is a space."""
        text = classes.characters if labels is None else labels
        if text is None:
            raise BadPipeline(
                f"postprocess.characters is missing, and the network's metadata hold no {CHARACTERS_KEY!r}; name a "
                "file with one character a line"
            )
        try:
            characters = labels_in(text.encode(), f"the network's {CHARACTERS_KEY!r}", spaces=True)
        except ValueError as error:
            raise BadPipeline(f"postprocess.characters: {error}") from None
        count = classes.count
        if count is not None and len(characters) == count - 2:
            characters.append(" ")
        if count is not None and len(characters) != count - 1:
            raise BadPipeline(
                f"postprocess.characters has {len(characters)} lines, the network {count} classes; expected "
                f"{count - 1}, one for each class but the blank, or {count - 2} and the last class is a space"
            )
        return text_of(characters)

    def suited_to(self, outputs: Sequence[NetworkOutput]) -> Text:
        if tuple(out.name for out in outputs) != CTC:
            raise BadNetwork(
                f"text takes a network built for it, which gives {' and '.join(CTC)}; build the pipeline again"
            )
        return self


def _reader(options: Text, characters: Sequence[str] | None, dropped: Callable[[int], None]) -> Postprocess:
    from onestream.postprocess.text.decoding import Decoder

    if characters is None:
        raise ValueError("postprocess text takes the characters of the network's classes")
    decode = Decoder(characters)

    def texts(outputs: Tensors, _sizes: Sequence[Size], _parameters: Sequence[Parameters] = ()) -> list[Tensors]:
        classes, scores = (outputs[name] for name in CTC)
        count_bad(~np.isfinite(scores) | (classes < 0) | (classes > len(characters)), dropped)
        read = decode(classes, scores)
        found = {TEXTS: np.array(read.texts, object)[:, None], SCORES: read.scores[:, None]}
        if options.character_scores:
            each = [own.astype("<f4").tobytes() for own in read.character_scores]
            found[CHARACTER_SCORES] = np.array(each, object)[:, None]
        return rows(found)

    return texts
