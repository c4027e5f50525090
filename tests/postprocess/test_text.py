"""CTC's best path to text, and classes of angles to degrees."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy
from pydantic import ValidationError

from onestream.postprocess.kinds import Opening, read_postprocess
from onestream.postprocess.kinds.rotation import Rotation
from onestream.postprocess.kinds.text import Text
from onestream.postprocess.kinds.text_lines import TextLines
from onestream.postprocess.text.decoding import Decoder
from onestream.preprocess import Decode, Definition, Letterbox, Resize

DEFINITION = Definition(operations=[Decode(), Resize(mode="exact", size=(48, 320))])
CHARACTERS = ["a", "é", "鯉", "\u3000", "ﬁ", "🛅", " "]


def steps(pairs: list[tuple[int, float]]) -> dict[str, np.ndarray]:
    """What a network gives for one line."""
    classes, scores = zip(*pairs, strict=True) if pairs else ((), ())
    return {"ctc_classes": np.array([classes], np.int32), "ctc_scores": np.array([scores], np.float32)}


def read(pairs: list[tuple[int, float]], **options: Any) -> dict[str, np.ndarray]:
    (answer,) = Text(**options).open(Opening(DEFINITION, labels=CHARACTERS))(steps(pairs), [])
    return answer


@given(st.lists(st.tuples(st.integers(0, len(CHARACTERS)), st.floats(0, 1, width=32))))
def test_repeats_are_one_and_blanks_are_none(pairs: list[tuple[int, float]]) -> None:
    groups = [next(group) for own, group in groupby(pairs, key=lambda pair: pair[0]) if own]
    expected, scores = "".join(CHARACTERS[own - 1] for own, _ in groups), [score for _, score in groups]
    answer = read(pairs, character_scores=True)
    assert answer["texts"].shape == answer["scores"].shape == (1, 1)
    assert answer["texts"][0, 0].decode() == expected
    assert answer["scores"].dtype == np.float32
    np.testing.assert_allclose(answer["scores"][0, 0], np.mean(scores) if scores else 0, rtol=1e-6)
    np.testing.assert_array_equal(np.frombuffer(answer["character_scores"][0, 0], "<f4"), np.float32(scores))


@given(
    st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.floats(width=32))),
    st.lists(st.tuples(st.integers(1, 2), st.floats(0, 1, width=32))),
)
def test_any_values_are_text(wild: list[tuple[int, float]], tame: list[tuple[int, float]]) -> None:
    """What is no character and no score stands for the blank; the rest is read."""
    (answer,) = Text().open(Opening(DEFINITION, labels=CHARACTERS))(steps(wild), [])
    answer["texts"][0, 0].decode()
    assert np.isfinite(answer["scores"]).all()
    for bad in ((0, 1.0), (-1, 1.0), (len(CHARACTERS) + 1, 1.0), (1, np.nan), (2, np.inf)):
        between = [pair for own in tame for pair in (own, bad)]
        assert read(between)["texts"][0, 0].decode() == "".join(CHARACTERS[own - 1] for own, _ in tame)


def test_lines_of_a_batch_are_read_alone() -> None:
    classes, certain = np.int32([[1, 1, 0], [1, 2, 3], [0, 0, 0]]), np.float32([[0.5, 0.1, 1], [1, 1, 0.4], [1] * 3])
    texts, scores, _ = Decoder(CHARACTERS)(classes, certain)
    assert [text.decode() for text in texts] == ["a", "aé鯉", ""]
    np.testing.assert_allclose(scores, [0.5, 0.8, 0], rtol=1e-6)
    with pytest.raises(ValueError, match="takes the characters"):
        Text().open(Opening(DEFINITION))


def turned(logits: list[list[float]], **options: Any) -> list[tuple[int, float]]:
    asked = Rotation(**{"degrees": (0, 180), "activation": "none", **options})
    answers = asked.open(Opening(DEFINITION))({"y": np.array(logits, np.float32)}, [])
    for answer in answers:
        assert {name: (value.dtype.name, value.shape) for name, value in answer.items()} == {
            "degrees": ("int32", (1, 1)),
            "scores": ("float32", (1, 1)),
        }
    return [(int(answer["degrees"][0, 0]), float(answer["scores"][0, 0])) for answer in answers]


def test_degrees_of_the_best_class_from_the_score_on() -> None:
    found = turned([[0.25, 0.75], [0.75, 0.25], [0.5, 0.5]], min_score=0.75)
    assert found == [(180, 0.75), (0, 0.75), (0, 0.5)]
    assert turned([[0.3, 0.7]], min_score=0.75) == [(0, pytest.approx(0.7))]
    assert turned([[0, 1, 9, 2]], degrees=(0, 90, 270, 180), activation="softmax")[0][0] == 270


@given(st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), min_size=1))
def test_what_is_not_finite_turns_nothing(logits: list[tuple[float, float]]) -> None:
    for row, (degrees, score) in zip(logits, turned([list(row) for row in logits], activation="softmax"), strict=True):
        assert degrees in (0, 180)
        assert 0 <= score <= 1
        if not np.isfinite(row).all():
            assert (degrees, score) == (0, 0)


def test_angles_that_are_none_are_refused_and_options_come_back_from_a_models_configuration() -> None:
    degrees: Any
    for degrees in ((0,), (0, 0), (0, 45), None):
        with pytest.raises(ValidationError):
            Rotation(degrees=degrees)
    for options in (Rotation(degrees=(0, 90, 180, 270), min_score=0.5), Text(character_scores=True)):
        assert read_postprocess(options.model_dump_json()) == options


# Values that nobody can use are counted, as a detector's are.

LINES = Definition(operations=[Decode(), Letterbox(size=(32, 64))])


def counted(options: Any, definition: Definition, outputs: dict[str, np.ndarray], sizes: Any = ()) -> list[int]:
    """What was told for a batch."""
    counts: list[int] = []
    options.open(Opening(definition, labels=["a", "b"], dropped=counts.append))(outputs, sizes)
    return counts


def told(bad: np.ndarray) -> list[int]:
    """Nothing is told where nothing is bad."""
    return [count] if (count := int(bad.sum())) else []


@given(of_numpy.arrays(np.float32, (2, 1, 8, 16), elements=st.floats(width=32)))
def test_cells_of_a_map_of_text(maps: np.ndarray) -> None:
    assert counted(TextLines(), LINES, {"y": maps}, [(32, 64)] * 2) == told(~np.isfinite(maps))


@given(of_numpy.arrays(np.float32, (3, 2), elements=st.floats(width=32)))
def test_angles(logits: np.ndarray) -> None:
    asked = Rotation(degrees=(0, 180), activation="softmax")
    assert counted(asked, DEFINITION, {"y": logits}) == told(~np.isfinite(logits).all(axis=1))


@given(
    of_numpy.arrays(np.int32, (2, 5), elements=st.integers(-2, 4)),
    of_numpy.arrays(np.float32, (2, 5), elements=st.floats(width=32)),
)
def test_steps_of_a_text(classes: np.ndarray, scores: np.ndarray) -> None:
    bad = ~np.isfinite(scores) | (classes < 0) | (classes > 2)
    assert counted(Text(), DEFINITION, {"ctc_classes": classes, "ctc_scores": scores}) == told(bad)
