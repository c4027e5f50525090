"""A pipeline of the user's own with a small network, built once; each test may have a copy to spoil."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from builds import build
from networks import mean_color
from own_pipeline import OPERATIONS, Own


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    (folder / "mine.onnx").write_bytes(mean_color((1, 3, 32, 32)).SerializeToString())
    own = {"preprocess": {"operations": OPERATIONS}, "postprocess": {"kind": "raw"}}
    (folder / "mine.yaml").write_text(yaml.safe_dump(own))
    build(folder / "mine.yaml", folder=folder / "repository", onnx_file=folder / "mine.onnx")
    return folder


@pytest.fixture
def own(built: Path, tmp_path: Path) -> Own:
    folder = Path(shutil.copytree(built, tmp_path / "own"))
    return Own(folder / "mine.yaml", folder / "repository")
