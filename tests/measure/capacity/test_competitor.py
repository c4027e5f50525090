"""The usual way does what ours does: the same preprocessing but for OpenCV's filter, and the same network."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from networks import mean_color
from PIL import Image

from onestream.measure.capacity.opencv import Preprocessing
from onestream.measure.capacity.opencv_results import Compositing, Detecting, Drawing
from onestream.measure.parity.library_baselines import OpenCv
from onestream.measure.parity.subject import Photo
from onestream.postprocess.kinds import Opening
from onestream.preprocess import Decode, Definition, Normalize, Resize
from onestream.preprocess.plan import Planner
from onestream.serving.engine.served import without_door
from onestream.serving.graph.onnx_graph import prepare
from onestream.serving.pipeline import Pipeline
from onestream.serving.stream_options import VideoOutput
from onestream.wire.box_style import color_of
from onestream.wire.tensor_names import CANDIDATES

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def frame() -> np.ndarray:
    photo = Image.open(ROOT / "examples" / "photos" / "coffee.jpg").convert("RGB").resize((640, 360))
    return np.ascontiguousarray(np.asarray(photo)[:, :, ::-1])


@pytest.mark.parametrize("color", ["rgb", "bgr"])
@pytest.mark.parametrize("name", ["classify", "matte"])
def test_the_network_s_input_is_that_of_opencv_step_by_step(name: str, color: str, frame: np.ndarray) -> None:
    definition = Pipeline.from_file(ROOT / "pipelines" / f"{name}.yaml").preprocess
    definition = Definition(operations=[Decode(color=color), *definition.operations[1:]])
    buffer = io.BytesIO()
    Image.fromarray(frame[:, :, ::-1]).save(buffer, "PNG")
    expected = OpenCv(definition).observe(Photo("frame", buffer.getvalue(), "plain")).stages["normalize"]
    found = Preprocessing(definition, frame.shape[:2])(frame)[0]
    assert found.dtype == np.float32
    # Normalized by one product and one sum instead of three steps.
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_plain_network_is_the_served_one_behind_its_door() -> None:
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    operations = (Decode(), Resize(mode="exact", size=(32, 32)), Normalize(mean=mean, std=std))
    served = prepare(mean_color(("batch", 3, 32, 32)), Definition(operations=operations))
    plain = without_door(served)
    onnx.checker.check_model(plain)
    pixels = np.random.default_rng(3).integers(0, 256, (2, 32, 32, 3), np.uint8)
    values = (pixels / np.float32(255) - np.float32(mean)) / np.float32(std)
    planes = np.ascontiguousarray(values.transpose(0, 3, 1, 2), np.float32)
    one, other = (
        onnxruntime.InferenceSession(model.SerializeToString()).run(None, {model.graph.input[0].name: given})[0]
        for model, given in ((served, pixels), (plain, planes))
    )
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_person_stays_and_the_rest_is_blurred(frame: np.ndarray) -> None:
    pipeline = Pipeline.from_file(ROOT / "pipelines" / "matte.yaml")
    assert pipeline.video
    assert pipeline.video.output
    preprocessing = Preprocessing(pipeline.preprocess, frame.shape[:2])
    composing = Compositing(pipeline.postprocess, pipeline.video.output, preprocessing.placement)  # type: ignore[arg-type]
    person = np.zeros((256, 256), np.float32)
    person[:, :128] = 1
    composed = composing.picture(frame, {"person": person})
    np.testing.assert_array_equal(composed[:, :300], frame[:, :300])
    right = composed[:, 340:].astype(float)
    assert np.abs(np.diff(right, axis=1)).mean() < 0.3 * np.abs(np.diff(frame[:, 340:].astype(float), axis=1)).mean()
    assert composing(frame, {"person": person})[:4] == b"\0\0\0\1"


@pytest.mark.parametrize("suppression", ["by_class", "across_classes", "none"])
@pytest.mark.parametrize("name", ["detect", "nanodet"])
def test_opencv_s_suppression_finds_the_objects_that_ours_does(name: str, suppression: str) -> None:
    pipeline = Pipeline.from_file(ROOT / "pipelines" / f"{name}.yaml")
    options = pipeline.postprocess.model_copy(update={"suppression": suppression, "class_ids": None})
    random, size_hw = np.random.default_rng(5), (375, 500)
    side = pipeline.preprocess.output_spec.size_hw[0]
    corners = random.uniform(0, side, (200, 2))
    boxes = np.concatenate([corners, corners + random.uniform(5, side / 2, (200, 2))], axis=1).astype(np.float32)
    scores = np.sort(random.uniform(0, 1, 200))[::-1].astype(np.float32)
    candidates = dict(zip(CANDIDATES, (boxes, scores, random.integers(0, 3, 200).astype(np.int32)), strict=True))
    ours = options.open(Opening(pipeline.preprocess))({key: one[None] for key, one in candidates.items()}, [size_hw])
    found = Detecting(options, Planner(pipeline.preprocess)(size_hw))(np.empty((*size_hw, 3), np.uint8), candidates)
    # Ours leaves out what has no area in the picture.
    visible = (found.boxes[:, 2:] > found.boxes[:, :2]).all(axis=1)
    np.testing.assert_allclose(found.boxes[visible], ours[0]["boxes"][0], atol=1e-2)
    np.testing.assert_array_equal(found.classes[visible], ours[0]["class_ids"][0])


def test_boxes_are_drawn_in_the_colours_of_ours(frame: np.ndarray) -> None:
    pipeline = Pipeline.from_file(ROOT / "pipelines" / "detect.yaml")
    placement = Planner(pipeline.preprocess)(frame.shape[:2])
    detecting = Detecting(pipeline.postprocess, placement)  # type: ignore[arg-type]
    drawing = Drawing(detecting, ["a"] * 80, VideoOutput(), placement)
    box = np.array([[75, 75, 225, 225]], np.float32)
    candidates = dict(zip(CANDIDATES, (box, np.float32([0.9]), np.int32([3])), strict=True))
    picture = drawing.picture(frame.copy(), candidates)
    left = round(75 * frame.shape[1] / 300)
    # COCO's number of the fourth class.
    assert picture[180, left].tolist() == list(color_of(4)[::-1])
    assert drawing(frame.copy(), candidates)[:4] == b"\0\0\0\1"
