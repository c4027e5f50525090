"""The plain competitors do the same work, with the same inputs and outputs."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import numpy as np
import pytest

from benchmarks.competitors import (
    CLASSIFY,
    DETECT,
    SCORE_THRESHOLD,
    Contest,
)
from onestream.postprocess.detection import suppress
from onestream.postprocess.kinds import Detection
from onestream.preprocess import compile
from onestream.preprocess.headers.reader import read_header
from onestream.serving.building.repository import warmup_photo
from onestream.serving.pipeline import Pipeline


def plain_module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    return importlib.import_module(f"benchmarks.plain.{name}")


def reference(contest: Contest) -> np.ndarray:
    (expected,) = compile(Pipeline.from_file(contest.pipeline_file).preprocess, backend="reference").run(
        [warmup_photo()]
    )
    assert isinstance(expected, np.ndarray)
    return expected


def test_the_classifiers_preprocessing_is_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = plain_module("classify.preprocess", monkeypatch)
    np.testing.assert_allclose(plain.preprocess(warmup_photo())[0], reference(CLASSIFY), rtol=0, atol=1e-6)


def test_the_detectors_preprocessing_is_within_a_level_of_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = plain_module("detect.preprocess", monkeypatch)
    network_input, image_size = plain.preprocess(np.frombuffer(warmup_photo(), np.uint8))
    # OpenCV's weights have 11 bits, the definition's more: both round to the nearest level of almost the same value.
    np.testing.assert_allclose(network_input[0], reference(DETECT), rtol=0, atol=1)
    assert tuple(image_size[0]) == read_header(warmup_photo()).oriented_hw


def test_the_detectors_options_are_the_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = plain_module("detect.postprocess", monkeypatch)
    options = Pipeline.from_file(DETECT.pipeline_file).postprocess
    assert isinstance(options, Detection)
    assert options.suppresses == "by_class"
    ours = (options.score_threshold, options.iou_threshold, options.max_detections)
    assert ours == (plain.SCORE_THRESHOLD, plain.IOU_THRESHOLD, plain.MAX_DETECTIONS)
    assert options.score_threshold == SCORE_THRESHOLD


def test_the_detector_suppresses_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = plain_module("detect.postprocess", monkeypatch)
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 100, (200, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(20, 60, (200, 2))], axis=1).astype(np.float32)
    scores = rng.permutation(200).astype(np.float32)
    class_ids = np.zeros(200, np.int32)
    kept = suppress(boxes, scores, class_ids, iou_threshold=plain.IOU_THRESHOLD, max_detections=200)
    assert plain.suppress(boxes, scores) == kept.tolist()
    assert len(kept) < 200


def test_the_detector_keeps_the_best_of_each_class_in_pixels_of_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = plain_module("detect.postprocess", monkeypatch)
    anchors = np.array([[0.5, 0.5, 0.5, 0.25], [0.5, 0.5, 0.5, 0.25], [0.5, 0.5, 0.5, 0.25], [0, 0, 1, 1]], np.float32)
    logits = np.full((4, 3), -9, np.float32)
    logits[[0, 1, 2], [1, 1, 2]] = 1, 3, 2
    image_size = np.array([100, 400], np.int32)
    boxes, scores, classes = plain.detect(np.zeros((4, 4), np.float32), logits, anchors, image_size)
    np.testing.assert_allclose(boxes, [[150, 25, 250, 75]] * 2)
    np.testing.assert_allclose(scores, 1 / (1 + np.exp([-3.0, -2.0])), rtol=1e-6)
    assert classes.tolist() == [1, 2]
    nothing = plain.detect(np.zeros((4, 4), np.float32), logits - 20, anchors, image_size)
    assert [part.shape for part in nothing] == [(0, 4), (0,), (0,)]
