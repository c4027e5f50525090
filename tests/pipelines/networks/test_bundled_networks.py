"""The built-in networks give what their own format gave in its runtime: detectors, and the person segmentation."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from PIL import Image

from onestream.pipelines.networks import load, nanodet, ssdlite
from onestream.postprocess.detector_family import ANCHORS
from onestream.postprocess.labels import COCO_IDS, read_labels
from onestream.serving.building.named_files import labels_of
from onestream.serving.building.network_source import NetworkSource
from onestream.serving.pipeline import Pipeline

ROOT = Path(__file__).parents[3]
ASSETS = ROOT / "tests" / "assets"
NAMES = read_labels(ROOT / "serving" / "data" / "coco_labels.txt")
# Values lie within about ±18; float32 sums in another order moved them by 2.7e-5 at most.
TOLERANCE = 1e-4
MEAN, STD = np.float32([103.53, 116.28, 123.675]), np.float32([57.375, 57.12, 58.395])
Floats = np.ndarray[Any, np.dtype[np.float32]]


def photos(side: int, *names: str) -> Floats:
    """Photos stretched to a square: float32 (photos, side, side, 3), RGB, 0 to 255."""
    pictures = [Image.open(ASSETS / f"{name}.jpg").convert("RGB") for name in names or ("chelsea", "coffee")]
    small = [np.asarray(picture.resize((side, side), Image.Resampling.BILINEAR)) for picture in pictures]
    return np.stack(small).astype(np.float32)


def in_planes(images: Floats) -> Floats:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def for_nanodet(images: Floats) -> Floats:
    return in_planes((images[..., ::-1] - MEAN) / STD)


class Network:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self._session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    def __call__(self, images: Floats) -> list[Floats]:
        return self._session.run(None, {"input": images})

    @property
    def operators(self) -> Counter[str]:
        return Counter(node.op_type for node in self.model.graph.node)

    @property
    def shapes(self) -> dict[str, list[str | int]]:
        return {
            value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
            for value in [*self.model.graph.input, *self.model.graph.output]
        }


@pytest.fixture(scope="module")
def networks() -> dict[str, Network]:
    return {
        "ssdlite": Network(ssdlite.export_ssdlite(ssdlite.fetch_graph())),
        "nanodet": Network(nanodet.export_nanodet_g(nanodet.fetch_graph())),
        "selfie": Network(load("selfie-segmentation", print)),
    }


def ssdlite_boxes(model: onnx.ModelProto, encodings: Floats) -> Floats:
    """y0, x0, y1, x1 in parts of the input's sides."""
    (anchors,) = (numpy_helper.to_array(c) for c in model.graph.initializer if c.name == ANCHORS)
    scaled = encodings / np.float32([10, 10, 5, 5])
    centers = scaled[..., :2] * anchors[:, 2:] + anchors[:, :2]
    sizes = np.exp(scaled[..., 2:]) * anchors[:, 2:]
    return np.concatenate([centers - sizes / 2, centers + sizes / 2], axis=-1)


def test_ssdlite_gives_what_tensorflow_js_gave(networks: dict[str, Network]) -> None:
    """The stored values are those of some anchors (tests/assets/README.md); its boxes are decoded by its own graph."""
    expected = np.load(ASSETS / "ssdlite_mobilenet_v2.npz")
    encodings, logits = networks["ssdlite"](in_planes(photos(300)))
    anchors = expected["anchors"]
    np.testing.assert_allclose(encodings[:, anchors], expected["encodings"], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(logits[:, anchors], expected["logits"][..., COCO_IDS], rtol=0, atol=TOLERANCE)
    boxes = ssdlite_boxes(networks["ssdlite"].model, encodings)[:, anchors]
    # In parts of the picture: a hundredth of a pixel of 300, and exp takes the tolerance of the encodings with it.
    np.testing.assert_allclose(boxes, expected["boxes"], rtol=0, atol=3e-5)


def test_nanodet_gives_what_tensorflow_js_gave(networks: dict[str, Network]) -> None:
    expected = np.load(ASSETS / "nanodet_g.npz")
    (output,) = networks["nanodet"](for_nanodet(photos(416)))
    np.testing.assert_allclose(output[:, expected["anchors"]], expected["output"], rtol=0, atol=TOLERANCE)


def test_nanodet_names_a_cat_that_was_not_stretched_and_fed_as_it_was_trained(networks: dict[str, Network]) -> None:
    picture = Image.open(ASSETS / "chelsea.jpg").convert("RGB")
    picture.thumbnail((416, 416), Image.Resampling.BILINEAR)
    canvas = Image.new("RGB", (416, 416))
    canvas.paste(picture, ((416 - picture.width) // 2, (416 - picture.height) // 2))
    image = np.asarray(canvas, np.float32)[None]
    scores, unlike = (
        networks["nanodet"](prepared)[0][0, :, :80].max(axis=0)
        for prepared in (for_nanodet(image), in_planes(image / 255))
    )
    assert NAMES[scores.argmax()] == "cat"
    assert scores.max() > 0.5
    assert NAMES[unlike.argmax()] != "cat", "without its normalization the network must see something else"


def test_the_segmentation_gives_what_the_original_runtime_gave(networks: dict[str, Network]) -> None:
    """The stored values are every fourth of LiteRT's in both directions (tests/assets/README.md)."""
    (person,) = networks["selfie"](photos(256, "astronaut", "coffee") / 255)
    assert person.shape == (2, 256, 256)
    # Float32 sums in another order: 8.5e-5 was the most between this and the original on photos and noise.
    np.testing.assert_allclose(person[:, 2::4, 2::4], np.load(ASSETS / "selfie_segmentation.npy"), rtol=0, atol=2e-4)
    # Its file is the one that its README describes.
    data = ROOT / "pipelines" / "networks"
    checksum = hashlib.sha256((data / "selfie_segmentation.onnx").read_bytes()).hexdigest()
    assert f"SHA-256 of this file: `{checksum}`" in (data / "README.md").read_text(encoding="utf-8")


def test_they_have_the_promised_interface_and_nothing_to_fuse_by_hand(networks: dict[str, Network]) -> None:
    given = {"encodings": ["batch", 1917, 4], "logits": ["batch", 1917, 80]}
    assert networks["ssdlite"].shapes == {"input": ["batch", 3, 300, 300], **given}
    operators = networks["ssdlite"].operators
    # A Mul and an Add scale the pixels; the other sums are those of the ten residual blocks.
    assert operators.pop("Mul") == 1
    assert operators.pop("Add") == 11
    assert set(operators) == {"Conv", "Clip", "Transpose", "Reshape", "Concat"}
    assert operators["Transpose"] == 12, "only where the six levels' boxes and logits leave"
    assert networks["nanodet"].shapes == {"input": ["batch", 3, 416, 416], "output": ["batch", 3549, 124]}
    operators = networks["nanodet"].operators
    assert (operators["Transpose"], operators["Pad"], operators["Mul"]) == (1, 0, 0)
    assert operators["Add"] == 4, "those of the pyramid"


def test_ids_have_the_gaps_of_coco_s_files() -> None:
    assert len(NAMES) == len(set(NAMES)) == len(COCO_IDS) == 80
    known = {1: "person", 13: "stop sign", 17: "cat", 27: "backpack", 47: "cup", 67: "dining table", 90: "toothbrush"}
    assert {number: NAMES[COCO_IDS.index(number)] for number in known} == known


def test_a_pipeline_names_the_network_and_cocos_labels(tmp_path: Path) -> None:
    """It takes batches."""
    file = tmp_path / "detector.yaml"
    operations = "[{op: decode}, {op: resize, mode: exact, size: [300, 300]}, {op: output}]"
    described = f"network: ssdlite-mobilenet-v2\npreprocess: {{operations: {operations}}}\n"
    file.write_text(f"{described}postprocess: {{kind: raw}}\n")
    pipeline = Pipeline.from_file(file)
    source = NetworkSource.of(pipeline, None, files=[tmp_path / "model.onnx"], anchors=None)
    served = source.prepare(pipeline, lambda _: None)
    assert [value.name for value in served.graph.output] == ["encodings", "logits"]
    assert served.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    file.write_text(f"{described}postprocess: {{kind: classification, labels: coco}}\n")
    labels = labels_of(Pipeline.from_file(file), tmp_path)
    assert tuple(labels.splitlines()) == tuple(NAMES)
