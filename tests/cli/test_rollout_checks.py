"""What a rollout compares of two versions' answers: best classes, objects, or values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client_fakes import detections, reading

from onestream.cli.rollout.checks import Answer, Comparison, Shown, Side, agree, compare
from onestream.preprocess import Decode, Definition
from onestream.wire.comparing import compare as compare_answers

PIXELS = Shown("own_preprocess", Definition(operations=(Decode(),)))
FORMS = {1: ("own", "own_fused"), 2: ("own_v2", "own_v2_fused")}


def sides(kind: str, shown: Shown | None) -> list[Side]:
    return [Side(version, forms, kind, shown) for version, forms in FORMS.items()]


def objects(*found: tuple[str, float, int]) -> Answer:
    """An answer of objects, by class, score and where they begin; each is 10 pixels wide and high."""
    placed = ((name, ord(name[0]), score, (x, 0, x + 10, 10)) for name, score, x in found)
    return detections(*placed, size_hw=(100, 100))


def text(*found: tuple[str, float, int]) -> Answer:
    """An answer of text, by line, score and how far down it is; each is 50 pixels wide and 10 high."""
    placed = ((line, score, ((0, y), (50, y + 1), (50, y + 10), (0, y + 9))) for line, score, y in found)
    return reading(*placed, size_hw=(100, 100))


def classes(*scores: float) -> Answer:
    order = np.argsort(-np.array(scores), kind="stable").astype(np.int32)
    return {"scores": np.array([scores], np.float32)[:, order], "class_ids": order[None]}


class Fake:
    """A client of a server whose models answer each photo as told."""

    def __init__(self, answers: Mapping[str, Mapping[str, Answer]]) -> None:
        self._answers, self.inputs = answers, list[Mapping[str, Any] | None]()

    def infer(self, model: str, photo: Path, *, inputs: Mapping[str, Any] | None = None) -> Answer:
        self.inputs.append(inputs)
        if model.endswith("_preprocess"):
            return {"pixels": np.zeros((1, 2, 2, 3), np.uint8)}
        return self._answers[photo.stem][model.removesuffix("_fused")]


def compared(kind: str, *, shown: Shown | None = PIXELS, **answers: tuple[Answer, Answer]) -> Comparison:
    client: Any = Fake({photo: {"own": old, "own_v2": new} for photo, (old, new) in answers.items()})
    return compare(client, *sides(kind, shown), [Path(f"{photo}.jpg") for photo in answers])


@pytest.mark.parametrize(
    ("shown", "others"), [(None, []), (replace(PIXELS, pictures=("second",)), [{"second": "other.jpg"}] * 2)]
)
def test_the_same_inputs_go_with_every_photo_to_every_form(shown: Shown | None, others: list[dict[str, str]]) -> None:
    """A model that shows pixels gets the other pictures, and nothing else of what the network takes."""
    client: Any = Fake({"a": {"own": classes(0.5), "own_v2": classes(0.5)}})
    given = {"points": [1], "second": "other.jpg"}
    compare(client, *sides("raw", shown), [Path("a.jpg")], given)
    assert client.inputs == [given] * 3 + others


def test_inputs_that_a_version_does_not_take_are_named() -> None:
    side = Side(2, FORMS[2], "raw", None, inputs=("points", "tokens"))
    side.check_inputs({"tokens": 1, "points": 2})
    with pytest.raises(ValueError, match="version 2 takes points, tokens beside each photo; got points: give each by"):
        side.check_inputs({"points": 2})
    with pytest.raises(ValueError, match="version 1 takes nothing beside each photo; got points"):
        Side(1, FORMS[1], "raw", None).check_inputs({"points": 2})


def test_objects_count_over_all_photos() -> None:
    cat = objects(("cat", 0.9, 0))
    result = compared(
        "detection",
        a=(objects(("cat", 0.9, 0), ("dog", 0.8, 50)), objects(("cat", 0.7, 1), ("fox", 0.8, 50))),
        b=(objects(), objects()),
        c=(cat, cat),
    )
    # Of the cats two are the same; the dog and the fox are found by one version each.
    assert (result.kept.same, result.kept.of) == (2, 4)
    assert result.max_difference == pytest.approx(0.2)
    assert result.failures(least_top1=0.5) == []
    (why,) = result.failures(least_top1=0.99)
    assert why == "the same object for 50.0% of the objects found; asked for 99.0%, --least-top1"
    (why,) = compared("detection", b=(objects(), objects())).failures(least_top1=0)
    assert "no version finds an object" in why
    pairs = ((cat, cat, True), (cat, objects(), False), (objects(), cat, False), (objects(), objects(), True))
    assert all(agree("detection", one, other) is same for one, other, same in pairs)


def test_lines_are_the_same_where_their_text_and_their_place_are() -> None:
    """Of versions that show no pixels, and are compared by their answers alone."""
    answers = {
        "a": (text(("EXIT", 0.9, 0), ("7 km", 0.8, 50)), text(("EXIT", 0.7, 1), ("7 km", 0.8, 80))),
        "b": (text(), text()),
        "c": (text(("stop", 0.9, 0), ("stop", 0.9, 20)), text(("st0p", 0.9, 0), ("stop", 0.9, 20))),
    }
    result = compared("reading", shown=None, **answers)
    # EXIT, and the second stop; a line elsewhere and a line that reads otherwise are found by one version each.
    assert (result.kept.same, result.kept.of) == (2, 6)
    assert result.max_difference == pytest.approx(0.2)
    assert (result.pixels, result.shows_pixels) == (None, False)
    (why,) = result.failures(least_top1=0.99)
    assert why == "the same text for 33.3% of the lines found; asked for 99.0%, --least-top1"
    assert [agree("reading", one, other) for one, other in answers.values()] == [False, True, False]


def test_regions_are_the_same_where_their_best_class_and_their_place_are() -> None:
    def regions(*found: tuple[str, float, int]) -> Answer:
        alone = objects(*found)
        several = {
            name: np.stack([alone[name], alone[name][:, ::-1]], axis=2) for name in ("scores", "class_ids", "labels")
        }
        return {**alone, **several, "detect_scores": alone["scores"], "left_out": np.zeros((1, 1), np.int32)}

    one = regions(("cat", 0.9, 0), ("dog", 0.8, 50))
    found = compare_answers("regions", one, regions(("cat", 0.7, 0), ("fox", 0.8, 50)))
    assert (found.row.nouns[0], len(found.same), found.of) == ("object", 1, 3)
    assert found.difference == pytest.approx(0.2)
    none = {name: value[:, :0] for name, value in one.items() if name not in ("image_size", "left_out")}
    assert agree("regions", {**one, **none}, {**one, **none})


def test_regions_that_nothing_is_named_of_are_the_same_where_their_place_is() -> None:
    def regions(places: Sequence[int], **outputs: np.ndarray) -> Answer:
        found = objects(*(("x", 0.9, place) for place in places))
        answer = {name: found[name] for name in ("boxes", "image_size")}
        return {**answer, **outputs, "left_out": np.zeros((1, 1), np.int32)}

    def vectors(*places: int) -> Answer:
        return regions(places, embedding=np.zeros((1, len(places), 4), np.float32))

    def directions(*degrees: int) -> Answer:
        scores = np.full((1, len(degrees)), 0.9, np.float32)
        return regions(range(0, 50 * len(degrees), 50), degrees=np.array([degrees], np.int32), scores=scores)

    found = compare_answers("regions", vectors(0, 50), vectors(0))
    assert (len(found.same), found.of, found.difference) == (1, 2, 0)
    found = compare_answers("regions", directions(0, 180), directions(0, 90))
    assert (len(found.same), found.of) == (1, 3)


def test_best_classes_are_compared_as_before() -> None:
    answers = {"a": (classes(0.1, 0.9), classes(0.2, 0.8)), "b": (classes(0.9, 0.1), classes(0.1, 0.9))}
    result = compared("classification", **answers)
    assert (result.kept.what, result.kept.share) == ("same best class", 0.5)
    (why,) = result.failures(least_top1=0.99)
    assert why == "the same best class for 50.0% of the photos; asked for 99.0%, --least-top1"


def test_other_outputs_are_compared_by_their_values() -> None:
    """Also those of a network that calls them as a detector's; masks have no best class."""
    for kind, shapes in (
        ("raw", {"map": (1, 2, 2, 2)}),
        ("raw", {"boxes": (1, 9, 4), "scores": (1, 9)}),
        ("embedding", {"embedding": (1, 4)}),
    ):
        one = {name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()}
        other = {name: values + 0.25 for name, values in one.items()}
        found = compare_answers(kind, one, other)
        assert (found.says, found.difference) == (False, 0.25)
        result = compared(kind, a=(one, other))
        assert (result.kept, result.failures(least_top1=1)) == (None, [])
    answer = {
        "masks": np.array([[b"png"]], object),
        "class_ids": np.array([[0, 1]], np.int32),
        "labels": np.array([[b"sky", b"ground"]], object),
        "image_size": np.array([[2, 3]], np.int32),
    }
    assert not compare_answers("segmentation", answer, answer).says
