"""Detection on a real Triton: every form and protocol gives the same boxes, in pixels of the picture."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import detectors
import numpy as np
import pytest
from image_files import encode
from patience import wait_until
from PIL import Image
from shared_server import SharedServer, built_in
from tritonclient import grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from onestream.client import Client, UnexpectedResponse
from onestream.postprocess.kinds import Opening
from onestream.postprocess.kinds.detection import Detection
from onestream.postprocess.labels import COCO_IDS
from onestream.preprocess import compile
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.pipeline import Pipeline

ROOT = Path(__file__).parents[2]
PIPELINE_FILE = ROOT / "pipelines" / "detect.yaml"
FORMS = ("detect", "detect_fused")


pytestmark = [pytest.mark.needs_triton, pytest.mark.serves(detectors.RED_CELLS)]


def two_red_cells() -> np.ndarray:
    pixels = np.zeros((detectors.SIDE, detectors.SIDE, 3), np.uint8)
    pixels[:8, 8:16, 0] = 255
    pixels[16:24, :8, 0] = 204
    return pixels


def reference(network: Path, labels: Path, photo: bytes) -> dict[str, np.ndarray]:
    """What the definition, run literally, and the same network and postprocessing find."""
    pipeline = Pipeline.from_file(PIPELINE_FILE)
    assert isinstance(pipeline.postprocess, Detection)
    (pixels,) = compile(pipeline.preprocess.pixels(), backend="reference").run([photo])
    assert isinstance(pixels, np.ndarray)
    engine = OnnxRuntimeEngine(network, threads=1)
    find = pipeline.postprocess.open(Opening(pipeline.preprocess, labels=labels.read_text().splitlines()))
    (found,) = find(engine.run({"pixels": pixels[None]}), [Image.open(io.BytesIO(photo)).size[::-1]])
    return {name: value[0] for name, value in found.items()}


@pytest.mark.slow
@pytest.mark.serves(built_in("detect"))
def test_every_form_and_protocol_finds_what_the_reference_finds(
    any_client: Client, server: SharedServer, photos: dict[str, bytes]
) -> None:
    model = server.repository / "detect_fused"
    for photo, expected_label in (("cat", "cat"), ("coffee", "cup"), ("astronaut", "person")):
        expected = reference(model / "1" / "model.onnx", model / "labels.txt", photos[photo])
        for form in FORMS:
            found = any_client.detect(photos[photo], pipeline=form)
            assert found.labels[0] == expected_label
            assert [label.encode() for label in found.labels] == expected["labels"].tolist()
            assert found.class_ids.tolist() == expected["class_ids"].tolist()
            assert set(found.class_ids.tolist()) <= set(COCO_IDS)
            assert found.image_size == Image.open(io.BytesIO(photos[photo])).size[::-1]
            # The network's sums depend on the size of a batch.
            np.testing.assert_allclose(found.boxes, expected["boxes"], atol=0.5)
            np.testing.assert_allclose(found.scores, expected["scores"], atol=0.01)
    with pytest.raises(UnexpectedResponse, match=r"'detect' answered .*for any kind use predict"):
        any_client.classify(photos["cat"], pipeline="detect")


def test_every_form_and_protocol_finds_what_is_there(any_client: Client) -> None:
    for form in ("cells", "cells_fused"):
        found = any_client.detect(two_red_cells(), pipeline=form)
        assert found.boxes.tolist() == [[8, 0, 16, 8], [0, 16, 8, 24]]
        np.testing.assert_allclose(found.scores, [1, 0.8], atol=1e-6)
        assert found.image_size == (detectors.SIDE, detectors.SIDE)
        nothing = any_client.detect(np.zeros((50, 60, 3), np.uint8), pipeline=form)
        assert nothing.boxes.shape == (0, 4)
        assert nothing.image_size == (50, 60)
        assert list(nothing) == []


@pytest.mark.parametrize("orientation", [1, 6, 8, 3, 5])
def test_boxes_are_in_pixels_of_the_upright_picture(grpc_client: Client, orientation: int) -> None:
    back = {
        1: None,
        3: Image.Transpose.ROTATE_180,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    for height, width in ((100, 300), (300, 100), (47, 45), (64, 64)):
        upright = np.zeros((height, width, 3), np.uint8)
        # A quarter of the picture, cut where cells of the letterbox begin at least for square pictures.
        upright[: height // 2, width // 2 :, 0] = 255
        image = Image.fromarray(upright)
        turned = encode(image if back is None else image.transpose(back), "JPEG", quality=95, exif=exif)
        found, fused = (grpc_client.detect(turned, pipeline=form) for form in ("cells", "cells_fused"))
        np.testing.assert_array_equal(found.boxes, fused.boxes)
        assert found.image_size == (height, width)
        assert len(found)
        cell = max(height, width) / detectors.CELLS
        corners = [found.boxes[:, :2].min(axis=0), found.boxes[:, 2:].max(axis=0)]
        # Cells that are half red count, so that each side is right within a cell; a score is 0.5 at least.
        expected = [width // 2, 0, width, height // 2]
        np.testing.assert_allclose(np.concatenate(corners), expected, atol=cell / 2 + 1)


COUNTED = ('onestream_candidates_dropped_total{{model="{model}"', 'onestream_objects_total{{label="0",model="{model}"')


@pytest.mark.slow
@pytest.mark.serves(detectors.served("sometimes_nan", score_threshold=0.2, bad="nan"))
def test_what_is_not_a_number_is_dropped_and_counted_and_hurts_nobody(
    server: SharedServer, grpc_client: Client
) -> None:
    """Nobody else asks this pipeline, so that each count is that of this request."""

    def counted(model: str) -> list[float]:
        return [server.metric(series.format(model=model)) for series in COUNTED]

    bright = np.zeros((64, 64, 3), np.uint8)
    bright[:8, :8, 0] = 255
    bright[8:16, 8:16, 0] = 128
    for form, model in (
        ("sometimes_nan", "sometimes_nan_postprocess"),
        ("sometimes_nan_fused", "sometimes_nan_fused"),
    ):
        before = counted(model)
        found = grpc_client.detect(bright, pipeline=form)
        assert found.boxes.tolist() == [[8, 8, 16, 16]]
        one_more = [count + 1 for count in before]
        wait_until(partial(lambda name, counts: counted(name) == counts, model, one_more), one_more)


@pytest.mark.parametrize(
    ("sizes", "code"),
    [([[2**31 - 1, 2**31 - 1]], "too_many_pixels"), ([[70_000, 1]], "too_many_pixels"), ([[9, 9]] * 2, "bad_request")],
)
def test_who_asks_the_last_step_alone_cannot_make_it_fail(
    server: SharedServer, sizes: list[list[int]], code: str
) -> None:
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
    with grpc.InferenceServerClient(server.grpc_address) as asked, pytest.raises(InferenceServerException) as refused:
        asked.infer("cells_postprocess", inputs)
    message = str(refused.value)
    assert code in message
    assert "Traceback" not in message
    assert ".py" not in message
