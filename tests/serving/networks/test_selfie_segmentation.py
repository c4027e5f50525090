"""The built-in person segmentation gives what the original runtime gave."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from onestream.serving.networks.selfie_segmentation import load_selfie_segmentation

ROOT = Path(__file__).parents[3]
ASSETS = ROOT / "tests" / "assets"
# Float32 sums in another order: 8.5e-5 was the most between this and the original runtime on photos and noise.
TOLERANCE = 2e-4
Floats = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module")
def network() -> Any:
    model = load_selfie_segmentation()
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


def test_the_file_is_the_one_that_its_readme_describes() -> None:
    data = ROOT / "serving" / "data"
    checksum = hashlib.sha256((data / "selfie_segmentation.onnx").read_bytes()).hexdigest()
    assert f"SHA-256 of this file: `{checksum}`" in (data / "README.md").read_text(encoding="utf-8")


def test_a_batch_gives_what_its_images_give_alone(network: Any, photos: Floats) -> None:
    alone = np.concatenate([network(photos[index : index + 1]) for index in range(2)])
    np.testing.assert_allclose(network(photos), alone, rtol=0, atol=TOLERANCE)
