"""The stock form in a real Triton with its C++ backends, on a CPU.

The embedded Triton has neither of them. These tests run in Triton's container, or with a tritonserver that has both and
is named by ``ONESTREAM_STOCK_TRITON``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from builds import build

from onestream.client import BadImage, Client, OnestreamError
from onestream.preprocess import BadImage as BadPixels
from onestream.preprocess import compile
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.graph import onnx_graph
from onestream.serving.pipeline import Pipeline
from onestream.serving.server.errors import TritonNotFound
from onestream.serving.server.server import Server
from onestream.serving.server.triton.installation import find_triton

pytestmark = pytest.mark.needs_triton

ROOT = Path(__file__).parents[3]
PHOTOS = {path.stem: path.read_bytes() for path in sorted((ROOT / "examples" / "photos").glob("*.jpg"))}
LABELS = (ROOT / "serving" / "data" / "imagenet_labels.txt").read_text(encoding="utf-8").splitlines()


def triton_with_backends() -> Path | None:
    """A tritonserver beside which the dali and onnxruntime backends are."""
    named = os.environ.get("ONESTREAM_STOCK_TRITON")
    if named:
        return Path(named)
    try:
        executable = find_triton().executable
    except TritonNotFound:
        return None
    backends = executable.parent.parent / "backends"
    return executable if all((backends / name).is_dir() for name in ("dali", "onnxruntime")) else None


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if triton_with_backends() is None:
        pytest.skip("no Triton with the dali and onnxruntime backends; see ONESTREAM_STOCK_TRITON")
    folder = tmp_path_factory.mktemp("stock")
    content = yaml.safe_load((ROOT / "pipelines" / "classify.yaml").read_text())
    content["serving"]["gpu"] = {"engine": "onnxruntime"}
    (folder / "classify.yaml").write_text(yaml.safe_dump(content))
    return build(folder / "classify.yaml", folder=folder / "models", form="dali-backend").folder


@pytest.fixture(scope="module")
def client(repository: Path) -> Iterator[Client]:
    triton = triton_with_backends()
    with (
        Server(repository, http_port=0, grpc_port=0, metrics_port=0, device="cpu", triton=triton) as server,
        Client(server.grpc_url, timeout_s=30.0) as connected,
    ):
        yield connected


def test_photos_get_the_results_of_the_reference(client: Client, repository: Path) -> None:
    pipeline = Pipeline.from_file(repository.parent / "classify.yaml")
    reference = compile(pipeline.preprocess.pixels())
    model = onnx_graph.load(repository / "classify_model" / "1" / "model.onnx")
    engine = OnnxRuntimeEngine(model.SerializeToString(), threads=1)
    for name, photo in PHOTOS.items():
        (pixels,) = reference.run([photo])
        assert not isinstance(pixels, BadPixels)
        seen = client.infer("classify_preprocess", photo)["pixels"]
        assert np.abs(seen[0].astype(int) - pixels).max() <= 1  # the tolerance of DALI's resize
        expected = engine.run({"pixels": seen})
        result = client.classify(photo)
        assert [label.class_id for label in result.labels] == expected["class_ids"][0].tolist(), name
        assert [label.label for label in result.labels] == [LABELS[index] for index in expected["class_ids"][0]]
        # The served ONNX Runtime may be another version than the installed one.
        np.testing.assert_allclose([label.score for label in result.labels], expected["scores"][0], atol=1e-4)


def test_on_a_cpu_a_bad_image_fails_alone(client: Client) -> None:
    good, bad = list(PHOTOS.values()), [b"not an image", PHOTOS["coffee"][:3000]]
    mixed = [(bad[index % 2] if index % 5 == 3 else good[index % len(good)]) for index in range(60)]
    for item in client.classify_many(mixed, in_flight=8):
        assert (item.error is not None) == (item.index % 5 == 3), item.error
        # Not told apart from other failures, which the README says.
        assert item.error is None or (isinstance(item.error, OnestreamError) and not isinstance(item.error, BadImage))
