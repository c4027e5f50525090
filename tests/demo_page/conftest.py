"""One real server with every kind of pipeline, and one page before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from networks import mean_color
from page_process import PHOTOS, ROOT, PageProcess

from serving.build import build
from serving.server import Server

GRAY = {
    "preprocess": {
        "operations": [
            {"op": "decode", "color": "gray"},
            {"op": "letterbox", "size": [48, 64], "value": 114},
            {"op": "normalize", "mean": [0.5], "std": [0.25]},
        ]
    },
    "postprocess": {"kind": "raw"},
    "serving": {"cpu_instances": 1},
}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with classify, matte and a raw pipeline in gray; one process a model: a page asks for one image."""
    folder = tmp_path_factory.mktemp("both")
    for name in ("classify", "matte"):
        pipeline = yaml.safe_load((ROOT / "pipelines" / f"{name}.yaml").read_text())
        pipeline["serving"]["cpu_instances"] = 1
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(pipeline))
        build(folder / f"{name}.yaml", folder=folder / "repository")
    (folder / "gray.yaml").write_text(yaml.safe_dump(GRAY))
    (folder / "gray.onnx").write_bytes(mean_color((1, 1, 48, 64)).SerializeToString())
    build(folder / "gray.yaml", folder=folder / "repository", onnx_file=folder / "gray.onnx")
    return folder / "repository"


@pytest.fixture(scope="package")
def served(built: Path) -> Iterator[Server]:
    models = ["classify", "classify_fused", "matte", "matte_fused", "gray"]
    with Server(built, http_port=0, grpc_port=0, metrics_port=0, models=models) as running:
        yield running


@pytest.fixture(scope="package")
def page(served: Server) -> Iterator[PageProcess]:
    with PageProcess("--url", served.grpc_address, "--port", "0") as running:
        yield running


@pytest.fixture(scope="session")
def photos() -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in sorted(PHOTOS.glob("*.jpg"))}
