"""What agreement means, by the kind of a pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onestream.postprocess.agreement import Agreement
from onestream.postprocess.average_precision import ap_installed
from onestream.postprocess.kinds import AnyPostprocess, Opening
from onestream.postprocess.kinds.classification import Classification
from onestream.postprocess.kinds.detection import Detection
from onestream.postprocess.kinds.embedding import Embedding
from onestream.postprocess.kinds.matte import Matte
from onestream.postprocess.kinds.raw import Raw
from onestream.postprocess.kinds.rotation import Rotation
from onestream.postprocess.kinds.segmentation import Segmentation
from onestream.postprocess.kinds.text import Text
from onestream.postprocess.kinds.text_lines import TextLines
from onestream.preprocess import Decode, Definition, Output, Resize

SIDE = 16
DEFINITION = Definition(operations=[Decode(), Resize(mode="exact", size=(SIDE, SIDE)), Output()])
Outputs = dict[str, np.ndarray]


def judged(options: AnyPostprocess, expected: list[Outputs], got: list[Outputs], labels: Any = None) -> Agreement:
    postprocess = options.open_compared(Opening(DEFINITION, labels))
    answers = [[postprocess(outputs, [(SIDE, SIDE)])[0] for outputs in side] for side in (expected, got)]
    return options.agreement(list(zip(*answers, strict=True)))


def outs(*values: Any) -> list[Outputs]:
    """The one output of a network, for a picture each."""
    return [{"out": np.array(value, np.float32)[None]} for value in values]


@pytest.mark.parametrize("kind", ["classification", "rotation"])
def test_of_classes_only_the_confident_ones_are_bound(kind: str) -> None:
    options: AnyPostprocess = Classification(top_k=1, activation="none")
    if kind == "rotation":
        options = Rotation(degrees=(0, 90, 180), min_score=0, activation="none")
    expected = outs([0.9, 0.1, 0], [0.1, 0.8, 0.1], [0.4, 0.3, 0.3], [0, 0.4, 0.45])
    got = outs([0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.3, 0.4, 0.3], [0, 0.4, 0.5])
    found = judged(options, expected, got)
    assert (found.share, found.of, found.all_share, found.all_of) == (0.5, 2, 0.5, 4)
    # Of the pictures whose class is the same: 0.2 and 0.05.
    assert found.mean_change == pytest.approx(0.125, abs=1e-6)
    assert found.largest_change == pytest.approx(0.2, abs=1e-6)
    assert "with a score above 0.5" in found.measure
    unsure = judged(options, expected[2:], got[2:])
    assert (unsure.share, unsure.of) == (0.5, 2)
    assert "score above" not in unsure.measure


def test_a_share_of_few_things_proves_little() -> None:
    for of, least in ((7, 0.646), (125, 0.970), (0, None)):
        found = Agreement(measure="the same", share=1, of=of, mean_change=0, largest_change=0)
        assert found.at_least == (None if least is None else pytest.approx(least, abs=5e-4))


def boxes(*objects: tuple[float, float, float, int]) -> list[Outputs]:
    """Squares of 4 pixels at x, y with a score and a class: the candidates of one picture."""
    return [
        {
            "candidate_boxes": np.array([[[x, y, x + 4, y + 4] for x, y, _, _ in objects]], np.float32),
            "candidate_scores": np.array([[score for _, _, score, _ in objects]], np.float32),
            "candidate_classes": np.array([[number for *_, number in objects]], np.int32),
        }
    ]


def test_of_objects_those_of_either_side_count() -> None:
    options = Detection(family="boxes", score_threshold=0.25)
    expected = boxes((0, 0, 0.9, 0), (8, 8, 0.8, 1), (0, 8, 0.3, 0))
    got = boxes((0.4, 0, 0.85, 0), (8, 8, 0.8, 2), (0, 8, 0.3, 0))
    found = judged(options, expected, got)
    # Confident: two of each side, of which one is the same; the faint one is the same on both sides.
    assert (found.share, found.of) == (0.5, 4)
    assert (found.all_share, found.all_of) == (pytest.approx(4 / 6, abs=1e-6), 6)
    assert found.largest_change == pytest.approx(0.05, abs=1e-6)
    assert (found.average_precision is not None) == ap_installed()
    if found.average_precision is not None:
        assert 0 < found.average_precision < 1
    assert judged(options, expected, expected).share == 1


def test_of_texts_only_equal_ones_count() -> None:
    def read(*classes: int, score: float) -> list[Outputs]:
        return [
            {"ctc_classes": np.array([classes], np.int32), "ctc_scores": np.full((1, len(classes)), score, np.float32)}
        ]

    options = Text(characters="letters.txt")
    expected, labels = read(1, 0, 2, score=0.9) + read(2, 0, 2, score=0.8) + read(1, 1, 0, score=0.3), ["a", "b"]
    got = read(1, 0, 2, score=0.8) + read(2, 0, 1, score=0.8) + read(2, 2, 0, score=0.3)
    found = judged(options, expected, got, labels)
    assert (found.share, found.of) == (0.5, 2)
    assert (found.all_share, found.all_of) == (pytest.approx(1 / 3, abs=1e-6), 3)
    assert found.measure.startswith("texts with a score above 0.5")


def test_of_lines_those_of_either_side_count() -> None:
    def line(*rows: int) -> list[Outputs]:
        map_ = np.zeros((1, SIDE, SIDE), np.float32)
        for row in rows:
            map_[..., row : row + 4, 2:14] = 0.9
        return outs(map_)

    options = TextLines(min_side=1)
    assert judged(options, line(1), line(1)).share == 1
    half = judged(options, line(1, 10), line(1))
    assert (half.share, half.of) == (pytest.approx(2 / 3, abs=1e-6), 3)


def test_of_mattes_what_both_show_counts() -> None:
    one, other, nothing = np.zeros((3, SIDE, SIDE), np.float32)
    one[:8], other[:4] = 1, 1
    found = judged(Matte(softness=1), outs(one), outs(other))
    assert found.share == pytest.approx(0.5, abs=1e-6)
    assert found.mean_change == pytest.approx(4 / SIDE, abs=1e-6)
    assert judged(Matte(), outs(one), outs(one)).share == 1
    # Pictures that show nothing say nothing.
    assert judged(Matte(), outs(nothing), outs(nothing)).share == 0


def test_of_masks_cells_count() -> None:
    scores = np.zeros((3, 4, 4), np.float32)
    scores[1] = 1
    other = scores.copy()
    other[2, 0] = 2
    assert judged(Segmentation(activation="softmax"), outs(scores), outs(other)).share == 0.75


@pytest.mark.parametrize("options", [Embedding(), Raw()])
def test_of_vectors_the_direction_counts(options: AnyPostprocess) -> None:
    found = judged(options, outs([3.0, 4.0], [3.0, 4.0]), outs([3.0, 4.0], [4.0, 3.0]))
    assert found.share == pytest.approx((1 + 24 / 25) / 2, abs=1e-6)
    assert "mean cosine" in found.measure
