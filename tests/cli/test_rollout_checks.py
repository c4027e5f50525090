"""What a rollout compares of two versions' answers: best classes, objects, or values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client_fakes import detections, reading

from onestream.cli.rollout.checks import Answer, Comparison, Shown, Side, agree, compare
from onestream.preprocess import Decode, Definition
from onestream.wire.comparing import compare as compare_answers

DEFINITION = Definition(operations=(Decode(),))
FORMS = {1: ("own", "own_fused"), 2: ("own_v2", "own_v2_fused")}


def sides(kind: str, **shown: None) -> list[Side]:
    return [
        Side(version, forms, kind, **{"shown": Shown(f"{forms[0]}_preprocess", DEFINITION)} | shown)
        for version, forms in FORMS.items()
    ]


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


def compared(kind: str, **answers: tuple[Answer, Answer]) -> Comparison:
    client: Any = Fake({photo: {"own": old, "own_v2": new} for photo, (old, new) in answers.items()})
    return compare(client, *sides(kind), [Path(f"{photo}.jpg") for photo in answers])


def test_the_same_inputs_go_with_every_photo_to_every_form() -> None:
    client: Any = Fake({"a": {"own": classes(0.5), "own_v2": classes(0.5)}})
    compare(client, *sides("classification", shown=None), [Path("a.jpg")], {"points": [1]})
    assert client.inputs == [{"points": [1]}] * 3


def test_a_model_that_shows_pixels_gets_the_other_pictures_too() -> None:
    """And nothing else of what the network takes."""
    client: Any = Fake({"a": {"own": classes(0.5), "own_v2": classes(0.5)}})
    shown = Shown("own_preprocess", DEFINITION, ("second",))
    given = {"points": [1], "second": "other.jpg"}
    compare(client, *(Side(version, FORMS[version], "raw", shown) for version in FORMS), [Path("a.jpg")], given)
    assert client.inputs == [given] * 3 + [{"second": "other.jpg"}] * 2


def test_inputs_that_a_version_does_not_take_are_named() -> None:
    side = Side(2, FORMS[2], "raw", None, inputs=("points", "tokens"))
    side.check_inputs({"tokens": 1, "points": 2})
    with pytest.raises(ValueError, match="version 2 takes points, tokens beside each photo; got points: give each by"):
        side.check_inputs({"points": 2})
    with pytest.raises(ValueError, match="version 1 takes nothing beside each photo; got points"):
        Side(1, FORMS[1], "raw", None).check_inputs({"points": 2})


def test_objects_count_over_all_photos() -> None:
    result = compared(
        "detection",
        a=(objects(("cat", 0.9, 0), ("dog", 0.8, 50)), objects(("cat", 0.7, 1), ("fox", 0.8, 50))),
        b=(objects(), objects()),
        c=(objects(("cat", 0.9, 0)), objects(("cat", 0.9, 0))),
    )
    # Of the cats two are the same; the dog and the fox are found by one version each.
    assert (result.kept.same, result.kept.of) == (2, 4)
    assert result.max_difference == pytest.approx(0.2)
    assert result.failures(least_top1=0.5) == []
    (why,) = result.failures(least_top1=0.99)
    assert why == "the same object for 50.0% of the objects found; asked for 99.0%, --least-top1"


def test_lines_are_the_same_where_their_text_and_their_place_are() -> None:
    result = compared(
        "reading",
        a=(text(("EXIT", 0.9, 0), ("7 km", 0.8, 50)), text(("EXIT", 0.7, 1), ("7 km", 0.8, 80))),
        b=(text(), text()),
        c=(text(("stop", 0.9, 0), ("stop", 0.9, 20)), text(("st0p", 0.9, 0), ("stop", 0.9, 20))),
    )
    # EXIT, and the second stop; a line elsewhere and a line that reads otherwise are found by one version each.
    assert (result.kept.same, result.kept.of) == (2, 6)
    assert result.max_difference == pytest.approx(0.2)
    (why,) = result.failures(least_top1=0.99)
    assert why == "the same text for 33.3% of the lines found; asked for 99.0%, --least-top1"
    assert agree("reading", text(("EXIT", 0.9, 0)), text(("EXIT", 0.9, 0)))
    assert not agree("reading", text(("EXIT", 0.9, 0)), text(("EX1T", 0.9, 0)))


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
    def vectors(*places: int) -> Answer:
        alone = objects(*(("x", 0.9, place) for place in places))
        answer = {name: alone[name] for name in ("boxes", "image_size")}
        return {
            **answer,
            "embedding": np.zeros((1, len(places), 4), np.float32),
            "left_out": np.zeros((1, 1), np.int32),
        }

    found = compare_answers("regions", vectors(0, 50), vectors(0))
    assert (len(found.same), found.of, found.difference) == (1, 2, 0)

    def directions(*degrees: int) -> Answer:
        places = [50 * number for number in range(len(degrees))]
        turned = {"degrees": np.array([degrees], np.int32), "scores": np.full((1, len(degrees)), 0.9, np.float32)}
        answer = {**vectors(*places), **turned}
        del answer["embedding"]
        return answer

    found = compare_answers("regions", directions(0, 180), directions(0, 90))
    assert (len(found.same), found.of) == (1, 3)


def test_versions_that_show_no_pixels_are_compared_by_their_answers() -> None:
    client: Any = Fake({"a": {"own": text(("EXIT", 0.9, 0)), "own_v2": text(("EXIT", 0.9, 0))}})
    result = compare(client, *sides("reading", shown=None), [Path("a.jpg")])
    assert (result.pixels, result.shows_pixels, result.failures(least_top1=1)) == (None, False, [])


def test_photos_without_objects_show_nothing() -> None:
    (why,) = compared("detection", a=(objects(), objects())).failures(least_top1=0)
    assert "no version finds an object" in why


def test_forms_that_find_other_objects_disagree() -> None:
    one, other = objects(("cat", 0.9, 0)), objects()
    assert agree("detection", one, one)
    assert not agree("detection", one, other)
    assert not agree("detection", other, one)
    assert agree("detection", other, other)


def test_best_classes_are_compared_as_before() -> None:
    result = compared(
        "classification", a=(classes(0.1, 0.9), classes(0.2, 0.8)), b=(classes(0.9, 0.1), classes(0.1, 0.9))
    )
    assert (result.kept.what, result.kept.share) == ("same best class", 0.5)
    (why,) = result.failures(least_top1=0.99)
    assert why == "the same best class for 50.0% of the photos; asked for 99.0%, --least-top1"


def test_a_network_that_calls_its_outputs_so_is_compared_by_their_values() -> None:
    one, other = (
        {"boxes": np.full((1, 9, 4), value, np.float32), "scores": np.full((1, 9), 0.5, np.float32)} for value in (1, 2)
    )
    assert compared("raw", a=(one, other)).kept is None


def test_masks_have_no_best_class() -> None:
    answer = {
        "masks": np.array([[b"png"]], object),
        "class_ids": np.array([[0, 1]], np.int32),
        "labels": np.array([[b"sky", b"ground"]], object),
        "image_size": np.array([[2, 3]], np.int32),
    }
    assert not compare_answers("segmentation", answer, answer).says


def test_other_outputs_are_compared_by_their_values() -> None:
    for kind, name, shape in (("raw", "map", (1, 2, 2, 2)), ("embedding", "embedding", (1, 4))):
        one, other = ({name: np.full(shape, value, np.float32)} for value in (0.5, 0.75))
        found = compare_answers(kind, one, other)
        assert (found.says, found.difference) == (False, 0.25)
        assert compared(kind, a=(one, other)).failures(least_top1=1) == []
