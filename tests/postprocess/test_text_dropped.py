"""Of what a network of text gives, values that nobody can use are counted, as a detector's are."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from onestream.postprocess.options import Rotation, Text, TextLines
from onestream.postprocess.postprocessing import open_postprocess
from onestream.preprocess import Decode, Definition, Letterbox, Resize

LINES = Definition(operations=[Decode(), Letterbox(size=(32, 64))])
LINE = Definition(operations=[Decode(), Resize(mode="exact", size=(48, 320))])
CHARACTERS = ["a", "b"]


def counted(options: Any, definition: Definition, outputs: dict[str, np.ndarray], sizes: Any = ()) -> list[int]:
    """What was told for a batch."""
    told: list[int] = []
    open_postprocess(options, definition, labels=CHARACTERS, dropped=told.append)(outputs, sizes)
    return told


def expected(bad: np.ndarray) -> list[int]:
    """Nothing is told where nothing is bad."""
    return [count] if (count := int(bad.sum())) else []


@given(of_numpy.arrays(np.float32, (2, 1, 8, 16), elements=st.floats(width=32)))
def test_cells_of_a_map_of_text(maps: np.ndarray) -> None:
    assert counted(TextLines(), LINES, {"y": maps}, [(32, 64)] * 2) == expected(~np.isfinite(maps))


@given(of_numpy.arrays(np.float32, (3, 2), elements=st.floats(width=32)))
def test_angles(logits: np.ndarray) -> None:
    asked = Rotation(degrees=(0, 180), activation="softmax")
    assert counted(asked, LINE, {"y": logits}) == expected(~np.isfinite(logits).all(axis=1))


@given(
    of_numpy.arrays(np.int32, (2, 5), elements=st.integers(-2, 4)),
    of_numpy.arrays(np.float32, (2, 5), elements=st.floats(width=32)),
)
def test_steps_of_a_text(classes: np.ndarray, scores: np.ndarray) -> None:
    bad = ~np.isfinite(scores) | (classes < 0) | (classes > len(CHARACTERS))
    assert counted(Text(), LINE, {"ctc_classes": classes, "ctc_scores": scores}) == expected(bad)
