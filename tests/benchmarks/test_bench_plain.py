"""The plain competitors do the same work, with the same inputs and outputs."""

from __future__ import annotations

import importlib
import io
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks import competitors
from benchmarks.competitors import (
    CLASSIFY,
    DETECT,
    READ,
    SCORE_THRESHOLD,
    Contest,
    PlainSetting,
    make_repository,
    plain_settings,
    write_plain,
)
from benchmarks.reading.readers import SETTINGS
from onestream.postprocess.detection import suppress
from onestream.postprocess.options import Detection
from onestream.preprocess import compile
from onestream.preprocess.headers.reader import read_header
from onestream.serving.building.repository import warmup_photo
from onestream.serving.building.triton_config import from_text
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


@pytest.mark.parametrize("contest", [CLASSIFY, DETECT], ids=lambda contest: contest.name)
def test_every_setting_is_a_complete_ensemble_with_our_inputs_and_outputs(contest: Contest, tmp_path: Path) -> None:
    settings = plain_settings(4)
    assert {(s.instances, s.threads) for s in settings} == {(1, 0), (1, 1), (4, 0), (4, 1)}
    make_repository(contest, tmp_path, settings)
    ours = from_text((tmp_path / contest.name / "config.pbtxt").read_text())
    for setting in settings:
        ensemble = from_text((tmp_path / setting.name / "config.pbtxt").read_text())
        assert ensemble.max_batch_size == ours.max_batch_size
        assert [(t.name, t.data_type, list(t.dims)) for t in ensemble.input] == [
            (t.name, t.data_type, list(t.dims)) for t in ours.input
        ]
        assert [(t.name, t.data_type, list(t.dims)) for t in ensemble.output] == [
            (t.name, t.data_type, list(t.dims)) for t in ours.output
        ]
        for step in ensemble.ensemble_scheduling.step:
            config = from_text((tmp_path / step.model_name / "config.pbtxt").read_text())
            assert config.name == step.model_name
            assert config.HasField("dynamic_batching")
            assert config.max_batch_size == ours.max_batch_size
            assert (tmp_path / step.model_name / "1" / "model.py").is_file()
        assert contest.batching_model(setting.name) == f"{setting.name}_network"
        network = from_text((tmp_path / f"{setting.name}_network" / "config.pbtxt").read_text())
        assert network.instance_group[0].count == setting.instances
        assert network.parameters["threads"].string_value == str(setting.threads)
        assert (tmp_path / f"{setting.name}_network" / "1" / "model.onnx").is_file()
    assert [contest.batching_model(name) for name in (contest.name, contest.fused)] == [
        f"{contest.name}_model", contest.fused,
    ]  # fmt: skip


class FakeRapidOcr:
    """Finds one line on every picture that is not black, and notes what it is asked."""

    def __init__(self, *, params: dict[str, Any]) -> None:
        self.params, self.asked = params, []

    def __call__(self, picture: bytes | np.ndarray, **options: bool) -> SimpleNamespace:
        self.asked.append((type(picture).__name__, options))
        pixels = np.asarray(Image.open(io.BytesIO(picture))) if isinstance(picture, bytes) else picture
        if not pixels.any():
            return SimpleNamespace(boxes=None, txts=None, scores=None)
        quads = np.array([[[1, 2], [9, 2], [9, 5], [1, 5]]], np.int32)
        return SimpleNamespace(boxes=quads, txts=("Größe",), scores=(0.75,))


@pytest.fixture
def plain_reader(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, "rapidocr", SimpleNamespace(RapidOCR=FakeRapidOcr))
    monkeypatch.delitem(sys.modules, "benchmarks.plain.read.whole", raising=False)
    return plain_module("read.whole", monkeypatch)


def png(level: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (40, 30), (level, level, level)).save(file, "PNG")
    return file.getvalue()


def test_the_plain_reader_is_one_model_with_rapidocrs_settings(
    tmp_path: Path, plain_reader: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, network = PlainSetting(instances=2, threads=1), SimpleNamespace(read_bytes=lambda: b"network")
    monkeypatch.setattr(competitors, "fetch_network", lambda _name: network)
    write_plain("read", tmp_path, setting, READ.plain_files())
    assert [path.name for path in tmp_path.iterdir()] == ["plain_2x_1"]
    config = from_text((tmp_path / setting.name / "config.pbtxt").read_text())
    assert (config.name, config.backend, config.instance_group[0].count) == (setting.name, "python", 2)
    assert (tmp_path / setting.name / "1" / "model.py").read_text() == Path(str(plain_reader.__file__)).read_text()
    assert READ.batching_model(setting.name) == setting.name
    assert [READ.batching_model(name) for name in ("read", "read_fused")] == ["read", "read_fused"]
    model = plain_reader.TritonPythonModel()
    model_config = {"parameters": {"threads": {"string_value": "1"}}}
    folder = tmp_path / setting.name
    model.initialize({"model_repository": str(folder), "model_version": "1", "model_config": json.dumps(model_config)})
    networks = {f"{part}.model_path": str(folder / "1" / f"{part}.onnx") for part in ("Det", "Cls", "Rec")}
    assert all(Path(file).read_bytes() == b"network" for file in networks.values())
    assert model.reader.params == SETTINGS | networks | {"EngineConfig.onnxruntime.intra_op_num_threads": 1}
    # Every network is loaded before the first request, and lines are looked for from then on.
    assert model.reader.asked == [("ndarray", {"use_det": False}), ("ndarray", {"use_det": True})]


def test_the_plain_reader_answers_every_request_with_or_without_text(
    plain_reader: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [png(200), png(0)]
    backend = SimpleNamespace(
        get_input_tensor_by_name=lambda request, _name: SimpleNamespace(
            as_numpy=lambda: np.frombuffer(request, np.uint8)[None]
        ),
        Tensor=lambda name, value: (name, value),
        InferenceResponse=dict,
    )
    monkeypatch.setattr(plain_reader, "pb_utils", backend)
    model = plain_reader.TritonPythonModel()
    model.reader = FakeRapidOcr(params={})
    found, nothing = model.execute(given)
    assert {name: (value.dtype.kind, value.shape) for name, value in found.items()} == {
        "quads": ("f", (1, 1, 4, 2)), "texts": ("O", (1, 1)), "scores": ("f", (1, 1)), "image_size": ("i", (1, 2)),
    }  # fmt: skip
    assert found["texts"][0, 0].decode() == "Größe"
    assert found["image_size"].tolist() == [[30, 40]]
    shapes = [nothing[name].shape for name in ("quads", "texts", "scores")]
    assert shapes == [(1, 0, 4, 2), (1, 0), (1, 0)]
