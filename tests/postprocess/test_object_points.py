"""Points of objects: where they lie in a picture, in a frame that is drawn, and how alike two of them are."""

from __future__ import annotations

import numpy as np
import pytest
from detectors import CELL, POINTS, POSES
from hypothesis import given
from hypothesis import strategies as st
from kind_networks import answer_in_process, built_of
from pydantic import ValidationError

from onestream.client import Keypoints, kinds
from onestream.postprocess.average_precision import agreement_ap
from onestream.postprocess.kinds import Opening
from onestream.postprocess.kinds.keypoints import Keypoints as Options
from onestream.preprocess import Definition
from onestream.preprocess.moves import Resize
from onestream.preprocess.operations import Decode, Output
from onestream.serving.models.in_process import InProcess
from onestream.wire.comparing import Found, compare, similarity


@pytest.fixture(scope="module")
def poses(tmp_path_factory: pytest.TempPathFactory) -> InProcess:
    return InProcess(built_of("keypoints", tmp_path_factory.mktemp("poses")).folder / f"{POSES.name}_fused")


def found(poses: InProcess, picture: np.ndarray) -> Keypoints:
    answer = answer_in_process(poses, picture)
    return kinds.read("keypoints", "m", answer, "", 0)


def test_points_are_in_pixels_of_the_picture_and_within_it(poses: InProcess) -> None:
    picture = np.zeros((32, 64, 3), np.uint8)  # twice as wide as high: 16 rows of the letterbox are above it
    picture[8:16, 16:24] = (255, 0, 0)
    result = found(poses, picture)
    middle = np.array([16 + CELL / 2, 8 + CELL / 2])
    expected = np.clip(middle + np.array(POINTS)[:, :2], 0, (64, 32))
    np.testing.assert_allclose(result.keypoints[0], expected, atol=1e-4)  # rounding of float32
    assert result.point_scores[0].tolist() == [score for _, _, score in POINTS]
    (one,) = result
    assert [name for name, point in one.points.items() if point.is_seen] == ["left", "right"]
    assert one.points["left"][:2] == pytest.approx(expected[0])
    assert result.to_coco(7)[0]["keypoints"][:3] == pytest.approx([*expected[0], 1])
    assert result.records(is_flat=True)[0]["left_x"] == pytest.approx(expected[0, 0])
    assert len(found(poses, np.zeros((32, 64, 3), np.uint8))) == 0


def test_a_point_that_is_not_finite_drops_its_object() -> None:
    options = Options(family="yolo", points=("a",), labels=("x",))
    dropped: list[int] = []
    definition = Definition(operations=(Decode(), Resize(mode="exact", size=(32, 32)), Output()))
    opened = options.open(Opening(definition, dropped=dropped.append))
    boxes = np.array([[[0, 0, 4, 4], [8, 8, 12, 12]]], np.float32)
    values = np.array([[[1, 1, 1], [9, np.nan, 1]]], np.float32)
    outputs = (boxes, np.array([[0.9, 0.8]], np.float32), np.zeros((1, 2), np.int32), values)
    (answer,) = opened(dict(zip(options.network_gives, outputs, strict=True)), [(32, 32)])
    assert (answer["keypoints"].shape, dropped) == ((1, 1, 1, 2), [1])


def test_a_skeleton_of_unknown_points_is_refused() -> None:
    with pytest.raises(ValidationError, match="skeleton has 'hand', which is not among the points"):
        Options(family="yolo", points=("foot",), skeleton=(("foot", "hand"),))


def test_boxes_in_parts_of_the_input_are_refused_where_points_are_in_its_pixels() -> None:
    with pytest.raises(ValidationError, match="normalized would scale the boxes alone"):
        Options(family="boxes", normalized=True)


@given(
    st.lists(st.tuples(*[st.floats(-50, 150)] * 2, st.sampled_from([0.1, 0.9])), min_size=17, max_size=17),
    st.floats(0, 40),
)
def test_similarity_is_that_of_pycocotools(points: list[tuple[float, float, float]], moved: float) -> None:
    cocoeval = pytest.importorskip("pycocotools.cocoeval")
    one = np.array([points])
    other = one + np.array([moved, -moved / 2, 0])
    area = 53.0 * 100
    shown = one[0, :, 2] >= 0.25
    evaluation = cocoeval.COCOeval(iouType="keypoints")
    evaluation.params.imgIds, evaluation.params.catIds = [1], [1]
    flat = np.concatenate([one[0, :, :2], shown[:, None]], axis=1).ravel()
    truth = {"keypoints": flat, "area": area, "bbox": [0, 0, 100, 100], "id": 1}
    evaluation._gts[1, 1] = [truth]
    evaluation._dts[1, 1] = [{"keypoints": other[0].ravel(), "score": 1.0}]
    if shown.any():
        assert similarity(one, other, np.array([area]))[0, 0] == pytest.approx(evaluation.computeOks(1, 1)[0, 0])


def test_objects_are_the_same_by_their_points_and_agreement_counts_them() -> None:
    def answer(shift: float) -> dict[str, np.ndarray]:
        return {
            "boxes": np.array([[[10, 10, 110, 110]]], np.float32),
            "scores": np.array([[0.9]], np.float32),
            "class_ids": np.zeros((1, 1), np.int32),
            "labels": np.array([[b"person"]], object),
            "keypoints": np.array([[[[50 + shift, 60], [70, 80]]]], np.float32),
            "point_scores": np.array([[[0.9, 0.1]]], np.float32),
        }

    near, far = compare("keypoints", answer(0), answer(2)), compare("keypoints", answer(0), answer(900))
    assert [pair.moved_px for pair in near.same] == pytest.approx([2])
    assert (len(far.same), far.lost, far.added) == (0, [0], [0])
    one_point = {name: answer(0)[name][:, :, :1] for name in ("keypoints", "point_scores")}
    assert compare("keypoints", answer(0), answer(0) | one_point).lost == [0], "as of another version in a rollout"
    for shift, expected in ((0.0, 1.0), (900.0, 0.0)):
        pair = (Found.of("keypoints", answer(0)), Found.of("keypoints", answer(shift)))
        assert agreement_ap([pair], 100) == pytest.approx(expected)
