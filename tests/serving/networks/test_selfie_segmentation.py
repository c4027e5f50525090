"""The built-in person segmentation: its conversion against the original runtime, and files that cannot be converted."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from onestream.serving.networks.selfie_segmentation import export_selfie_segmentation, fetch_selfie_segmentation
from onestream.serving.networks.tflite import BadTflite, TfliteNetwork, TfliteOperator, read_tflite

ASSETS = Path(__file__).parents[2] / "assets"
# Float32 sums in another order: 8.5e-5 was the most between this and the original runtime on photos and noise.
TOLERANCE = 2e-4
Floats = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module")
def content() -> bytes:
    return fetch_selfie_segmentation().read_bytes()


@pytest.fixture(scope="module")
def network(content: bytes) -> Any:
    model = export_selfie_segmentation(read_tflite(content))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda images: session.run(["person"], {"input": images})[0]


@pytest.fixture(scope="module")
def photos() -> Floats:
    pictures = [Image.open(ASSETS / f"{name}.jpg").convert("RGB") for name in ("astronaut", "coffee")]
    small = [np.asarray(picture.resize((256, 256), Image.Resampling.BILINEAR)) for picture in pictures]
    return np.stack(small).astype(np.float32) / 255


def test_the_network_gives_what_the_original_runtime_gave(network: Any, photos: Floats) -> None:
    """The stored values are every fourth of LiteRT's in both directions (tests/assets/README.md)."""
    expected = np.load(io.BytesIO((ASSETS / "selfie_segmentation.npy").read_bytes()))
    person = network(photos)
    assert person.shape == (2, 256, 256)
    np.testing.assert_allclose(person[:, 2::4, 2::4], expected, rtol=0, atol=TOLERANCE)


def test_the_astronaut_is_a_person_and_her_flag_is_not(network: Any, photos: Floats) -> None:
    person = network(photos[:1])[0]
    assert person[60, 110] > 0.95, "her face"
    assert person[100, 20] < 0.05, "the flag"


def test_a_batch_gives_what_its_images_give_alone(network: Any, photos: Floats) -> None:
    alone = np.concatenate([network(photos[index : index + 1]) for index in range(2)])
    np.testing.assert_allclose(network(photos), alone, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("size", [0, 3, 8, 100, 20_000, 249_000])
def test_a_cut_file_is_refused(content: bytes, size: int) -> None:
    with pytest.raises(BadTflite, match=r"not a TensorFlow Lite file|the file ends at byte|the file holds no network"):
        read_tflite(content[:size])


def test_damaged_structure_is_read_or_refused_but_never_crashes(content: bytes) -> None:
    """The last 30 KB hold the tables; one damaged byte each time."""
    rng = np.random.default_rng(5)
    refused = 0
    for at in rng.integers(len(content) - 30_000, len(content), 150):
        damaged = bytearray(content)
        damaged[at] ^= int(rng.integers(1, 256))
        try:
            read_tflite(bytes(damaged))
        except BadTflite:
            refused += 1
    assert refused > 0


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("RELU", {"kind": "FancyOperator"}, "FancyOperator cannot be converted"),
        ("CONV_2D", {"options": None}, "CONV_2D has no options"),
        ("CONV_2D", {"inputs": (0, 0, 0)}, "must be a constant"),
        ("Convolution2DTransposeBias", {"custom_options": bytes(12)}, "not equal"),
    ],
)
def test_what_cannot_be_converted_is_named(content: bytes, kind: str, change: dict[str, Any], message: str) -> None:
    read = read_tflite(content)
    operators = list(read.operators)
    index = next(i for i, op in enumerate(operators) if op.kind == kind)
    fields = {name: getattr(operators[index], name) for name in TfliteOperator.__slots__} | change
    operators[index] = TfliteOperator(**fields)
    with pytest.raises(BadTflite, match=message):
        export_selfie_segmentation(TfliteNetwork(read.tensors, tuple(operators), read.inputs, read.outputs))
