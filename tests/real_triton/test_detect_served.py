"""Detection on a real Triton: every form and protocol gives the same boxes, in pixels of the picture."""

from __future__ import annotations

import io
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import detectors
import numpy as np
import pytest
import yaml
from PIL import Image
from tritonclient import grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from onestream.client import BadImage, Client, Detections, UnexpectedResponse
from onestream.postprocess.labels import COCO_IDS
from onestream.postprocess.options import Detection
from onestream.postprocess.postprocessing import open_postprocess
from onestream.preprocess import compile
from onestream.serving.building.build import build
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.pipeline import Pipeline
from onestream.serving.server.server import Server

pytestmark = pytest.mark.needs_triton

ROOT = Path(__file__).parents[2]
PIPELINE_FILE = ROOT / "pipelines" / "detect.yaml"
FORMS = ("detect", "detect_fused")
WAIT_S = 10.0


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("detectors")
    # One process of each model: starting them is what takes the time of these tests.
    fields = yaml.safe_load(PIPELINE_FILE.read_text()) | {"serving": {"max_batch_size": 4, "cpu_instances": 1}}
    del fields["video"]
    every = {"score_threshold": 0, "suppression": "none", "max_detections": 1000, "max_candidates": 1000}
    files = {
        "detect": fields,
        "everything": fields | {"postprocess": fields["postprocess"] | every},
        "cells": detectors.pipeline("cells", score_threshold=0.5),
        "sometimes_nan": detectors.pipeline("sometimes_nan", score_threshold=0.2),
    }
    detectors.level_detector(folder / "cells.onnx")
    detectors.level_detector(folder / "sometimes_nan.onnx", bad="nan")
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
        network = folder / f"{name}.onnx"
        build(folder / f"{name}.yaml", folder=folder / "repository", onnx_file=network if network.exists() else None)
    return folder / "repository"


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with Server(repository, http_port=0, grpc_port=0, metrics_port=0, shared_memory=True) as started:
        yield started


@pytest.fixture(params=["grpc", "http", "grpc, shared memory", "http, shared memory"])
def client(server: Server, request: pytest.FixtureRequest) -> Iterator[Client]:
    url = server.grpc_url if request.param.startswith("grpc") else server.http_url
    with Client(url, timeout_s=60, shared_memory="shared" in request.param) as connected:
        yield connected


def reference(repository: Path, photo: bytes) -> Detections:
    """What the definition, run literally, and the same network and postprocessing find."""
    pipeline = Pipeline.from_file(PIPELINE_FILE)
    assert isinstance(pipeline.postprocess, Detection)
    (pixels,) = compile(pipeline.preprocess.pixels(), backend="reference").run([photo])
    assert isinstance(pixels, np.ndarray)
    engine = OnnxRuntimeEngine(repository / "detect_fused" / "1" / "model.onnx", threads=1)
    labels = (repository / "detect_fused" / "labels.txt").read_text().splitlines()
    find = open_postprocess(pipeline.postprocess, pipeline.preprocess, labels=labels)
    size = Image.open(io.BytesIO(photo)).size
    (found,) = find(engine.run(pixels[None]), [(size[1], size[0])])
    return Detections(
        boxes=found["boxes"][0],
        scores=found["scores"][0],
        class_ids=found["class_ids"][0],
        labels=tuple(label.decode() for label in found["labels"][0]),
        image_size=(size[1], size[0]),
        model="",
        request_id="",
        latency_ms=0.0,
    )


def test_every_form_and_protocol_finds_what_the_reference_finds(
    client: Client, repository: Path, photos: dict[str, bytes]
) -> None:
    for photo, expected_label in (("cat", "cat"), ("coffee", "cup"), ("astronaut", "person")):
        expected = reference(repository, photos[photo])
        for form in FORMS:
            found = client.detect(photos[photo], pipeline=form)
            assert found.labels[0] == expected_label
            assert found.labels == expected.labels
            assert found.class_ids.tolist() == expected.class_ids.tolist()
            assert set(found.class_ids.tolist()) <= set(COCO_IDS)
            assert found.image_size == expected.image_size
            # DALI's decoded pixels are within one level of the reference's.
            np.testing.assert_allclose(found.boxes, expected.boxes, atol=0.5)
            np.testing.assert_allclose(found.scores, expected.scores, atol=0.01)


def test_a_picture_without_objects_has_no_boxes(client: Client) -> None:
    for form in FORMS:
        found = client.detect(np.full((50, 60, 3), 127, np.uint8), pipeline=form)
        assert len(found) == 0
        assert found.boxes.shape == (0, 4)
        assert found.image_size == (50, 60)
        assert list(found) == []


def test_a_thousand_boxes_arrive(client: Client, photos: dict[str, bytes]) -> None:
    for form in ("everything", "everything_fused"):
        found = client.detect(photos["temple"], pipeline=form)
        # Of the best thousand some lie outside the picture, of which nothing is left there.
        assert 900 < len(found) <= 1000
        height, width = found.image_size
        assert (found.boxes >= 0).all()
        assert (found.boxes[:, [0, 2]] <= width).all()
        assert (found.boxes[:, [1, 3]] <= height).all()
        assert (found.boxes[:, 2:] > found.boxes[:, :2]).all()
        assert (np.diff(found.scores) <= 0).all()


@pytest.mark.parametrize("size_hw", [(100, 300), (300, 100), (47, 45), (64, 64), (640, 480)])
@pytest.mark.parametrize("orientation", [1, 6, 8, 3, 5])
def test_boxes_are_in_pixels_of_the_upright_picture(server: Server, size_hw: tuple[int, int], orientation: int) -> None:
    height, width = size_hw
    upright = np.zeros((height, width, 3), np.uint8)
    # A quarter of the picture, cut where cells of the letterbox begin at least for square pictures.
    upright[: height // 2, width // 2 :, 0] = 255
    back = {
        1: None,
        3: Image.Transpose.ROTATE_180,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    image = Image.fromarray(upright)
    stored = image if back is None else image.transpose(back)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    stored.save(file, "JPEG", quality=95, exif=exif)
    with Client(server.grpc_url, timeout_s=60) as client:
        found, fused = (client.detect(file.getvalue(), pipeline=form) for form in ("cells", "cells_fused"))
    np.testing.assert_array_equal(found.boxes, fused.boxes)
    assert found.image_size == size_hw
    assert len(found)
    cell = max(height, width) / detectors.CELLS
    corners = [found.boxes[:, :2].min(axis=0), found.boxes[:, 2:].max(axis=0)]
    # Cells that are half red count, so that each side is right within a cell; a score is 0.5 at least.
    np.testing.assert_allclose(np.concatenate(corners), [width // 2, 0, width, height // 2], atol=cell / 2 + 1)


def metric(server: Server, name: str) -> float:
    with urllib.request.urlopen(server.metrics_url, timeout=WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def settled(server: Server, name: str) -> float:
    """A counter when what was counted before has arrived: models deliver once a second."""
    seen = metric(server, name)
    while True:
        time.sleep(2)
        seen, last = metric(server, name), seen
        if seen == last:
            return seen


def test_what_is_not_a_number_is_dropped_and_counted_and_hurts_nobody(server: Server) -> None:
    bright = np.zeros((64, 64, 3), np.uint8)
    bright[:8, :8, 0] = 255
    bright[8:16, 8:16, 0] = 128
    with Client(server.grpc_url, timeout_s=60) as client:
        for form in ("sometimes_nan", "sometimes_nan_fused"):
            family = f'onestream_candidates_dropped_total{{model="{form}'
            before = settled(server, family)
            found = client.detect(bright, pipeline=form)
            assert found.boxes.tolist() == [[8, 8, 16, 16]]
            deadline = time.monotonic() + WAIT_S
            while metric(server, family) != before + 1:
                assert time.monotonic() < deadline, "the dropped candidate is counted"
                time.sleep(0.1)


def test_bad_pictures_between_good_ones_are_refused_alone(
    client: Client, bad_images: dict[str, tuple[bytes, str]], photos: dict[str, bytes]
) -> None:
    mixed: list[bytes] = []
    for data, _code in bad_images.values():
        mixed += [photos["cat"], data]
    for form in FORMS:
        items = list(client.predict_many(mixed, pipeline=form, in_flight=8))
        for item in items[::2]:
            result = item.unwrap()
            assert isinstance(result, Detections)
            assert result.labels == ("cat",)
        codes = [item.error.code for item in items[1::2] if isinstance(item.error, BadImage)]
        assert codes == [code for _data, code in bad_images.values()]


def test_objects_are_counted_by_class(server: Server, photos: dict[str, bytes]) -> None:
    family = 'onestream_objects_total{label="cat",model="detect_fused"'
    before = settled(server, family)
    with Client(server.grpc_url, timeout_s=60) as client:
        client.detect(photos["cat"], pipeline="detect_fused")
        deadline = time.monotonic() + WAIT_S
        while metric(server, family) != before + 1:
            assert time.monotonic() < deadline, "the cat is counted"
            time.sleep(0.1)
        with pytest.raises(UnexpectedResponse, match=r"'detect' answered .*for any kind use predict"):
            client.classify(photos["cat"], pipeline="detect")


@pytest.mark.parametrize(
    ("sizes", "code"),
    [([[2**31 - 1, 2**31 - 1]], "too_many_pixels"), ([[70_000, 1]], "too_many_pixels"), ([[9, 9]] * 2, "bad_request")],
)
def test_who_asks_the_last_step_alone_cannot_make_it_fail(server: Server, sizes: list[list[int]], code: str) -> None:
    count, most = len(sizes), 64
    tensors = {
        "candidate_boxes": np.tile(np.array([0, 0, 9, 9], np.float32), (count, most, 1)),
        "candidate_scores": np.full((count, most), 0.9, np.float32),
        "candidate_classes": np.zeros((count, most), np.int32),
        "image_size": np.array(sizes, np.int32),
    }
    inputs = []
    for name, value in tensors.items():
        inputs.append(grpc.InferInput(name, value.shape, np_to_triton_dtype(value.dtype)))
        inputs[-1].set_data_from_numpy(value)
    address = server.grpc_url.removeprefix("grpc://")
    with grpc.InferenceServerClient(address) as asked, pytest.raises(InferenceServerException) as refused:
        asked.infer("cells_postprocess", inputs)
    message = str(refused.value)
    assert code in message
    assert "Traceback" not in message
    assert ".py" not in message
