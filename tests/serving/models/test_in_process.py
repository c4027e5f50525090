"""The fused form without Triton: the answers of a real server, bit by bit, and what it refuses to load."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onestream.client import Client
from onestream.client.answers import result
from onestream.preprocess import BadImage, StampMismatch
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.errors import BadPipeline
from onestream.serving.models.in_process import InProcess
from onestream.serving.server.server import Server

ROOT = Path(__file__).parents[3]
PHOTOS = [path.read_bytes() for path in sorted((ROOT / "examples" / "photos").glob("*.jpg"))]


@pytest.fixture
def folder(repository: Path, tmp_path: Path) -> Path:
    """A copy of a built model, to be changed."""
    return Path(shutil.copytree(repository / "classify_fused", tmp_path / "classify_fused"))


@pytest.mark.needs_triton
def test_its_answers_are_those_of_the_server(server: Server, repository: Path) -> None:
    model = InProcess(repository / "classify_fused")
    outcomes = model(PHOTOS)
    with Client(server.grpc_address) as client:
        for photo, outcome in zip(PHOTOS, outcomes, strict=True):
            assert isinstance(outcome, dict)
            here = result(model.name, outcome, "", 0.0)
            there = client.classify(photo, pipeline="classify_fused")
            assert here.labels == there.labels  # type: ignore[union-attr]


def test_a_bad_picture_leaves_its_batch_as_it_is(repository: Path) -> None:
    model = InProcess(repository / "classify_fused")
    alone = [model([photo])[0] for photo in PHOTOS[:2]]
    first, bad, empty, second = model([PHOTOS[0], PHOTOS[1][:2000], b"text", PHOTOS[1]])
    assert isinstance(bad, BadImage)
    assert bad.code == "corrupt"
    assert isinstance(empty, BadImage)
    assert empty.code == "unsupported_format"
    for one, other in zip(alone, (first, second), strict=True):
        assert isinstance(one, dict)
        assert isinstance(other, dict)
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_a_network_that_fails_for_one_picture_fails_for_that_alone(repository: Path) -> None:
    class FailsOnce(OnnxRuntimeEngine):
        def run(self, pixels: Any) -> dict[str, Any]:
            if pixels.sum() == doomed:
                raise RuntimeError("no")
            return super().run(pixels)

    seen: list[int] = []

    class Sums(OnnxRuntimeEngine):
        def run(self, pixels: Any) -> dict[str, Any]:
            seen.append(int(pixels.sum()))
            return super().run(pixels)

    InProcess(repository / "classify_fused", engine=Sums)(PHOTOS[:3])
    doomed = seen[1]
    outcomes = InProcess(repository / "classify_fused", engine=FailsOnce)(PHOTOS[:3])
    assert [type(outcome) for outcome in outcomes] == [dict, RuntimeError, dict]


def test_parts_that_do_not_belong_together_are_refused(folder: Path) -> None:
    definition = folder / "definition.json"
    definition.write_text(definition.read_text().replace("256", "255"))
    with pytest.raises(StampMismatch, match="first difference"):
        InProcess(folder)


def test_a_folder_without_a_built_model_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadPipeline, match="expected the folder of a fused model"):
        InProcess(tmp_path / "nothing")
    (folder / "1" / "model.onnx").unlink()
    with pytest.raises(BadPipeline, match=r"classify_fused holds no model\.onnx; build it with onestream build"):
        InProcess(folder)
