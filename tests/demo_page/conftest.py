"""One real server with both kinds of pipelines, and one page before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from page_process import PHOTOS, ROOT, PageProcess

from serving.build import build
from serving.server import Server


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with classify and matte, of one process a model: a page asks about one image at a time."""
    folder = tmp_path_factory.mktemp("both")
    for name in ("classify", "matte"):
        pipeline = yaml.safe_load((ROOT / "pipelines" / f"{name}.yaml").read_text())
        pipeline["serving"]["cpu_instances"] = 1
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(pipeline))
        build(folder / f"{name}.yaml", folder=folder / "repository")
    return folder / "repository"


@pytest.fixture(scope="package")
def both_served(both: Path) -> Iterator[Server]:
    models = ["classify", "classify_fused", "matte", "matte_fused"]
    with Server(both, http_port=0, grpc_port=0, metrics_port=0, models=models) as running:
        yield running


@pytest.fixture(scope="package")
def page(both_served: Server) -> Iterator[PageProcess]:
    with PageProcess("--url", both_served.grpc_address, "--port", "0") as running:
        yield running


@pytest.fixture(scope="session")
def photos() -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in sorted(PHOTOS.glob("*.jpg"))}
