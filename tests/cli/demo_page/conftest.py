"""One page before the shared server, and a Chromium."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from fake_triton import HEIGHT, WIDTH, FakeTriton, serving
from networks import mean_color
from page_browser import chromium
from page_process import PHOTOS, PageThread
from PIL import Image
from shared_server import CLASSIFY, MATTE, Served, SharedServer, built_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser

GRAY = """\
preprocess:
  operations:
  - {op: decode, color: gray}
  - {op: letterbox, size: [48, 64], value: 114}
  - {op: normalize, mean: [0.5], std: [0.25]}
postprocess: {kind: raw}
serving: {cpu_instances: 1}
"""


def write_gray(folder: Path) -> Path:
    """A raw pipeline in gray, and its network."""
    (folder / "page_gray.yaml").write_text(GRAY)
    network = folder / "gray.onnx"
    network.write_bytes(mean_color(("batch", 1, 48, 64)).SerializeToString())
    return network


SERVED = (
    CLASSIFY,
    built_in("detect", standing=True),
    replace(MATTE, standing=True),
    Served("page_gray", write_gray, standing=True),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what asks the shared server."""
    for item in items:
        if Path(__file__).parent in item.path.parents and "server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.serves(*SERVED))
            item.add_marker(pytest.mark.needs_triton)


@pytest.fixture(scope="package")
def page(server: SharedServer) -> Iterator[PageThread]:
    with PageThread(server.grpc_address) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for longer: Playwright has an event loop in this thread, where no other can run meanwhile."""
    with chromium() as running:
        yield running


@pytest.fixture(scope="session")
def photos() -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in sorted(PHOTOS.glob("*.jpg"))}


@pytest.fixture(scope="session")
def picture() -> bytes:
    """Many levels."""
    file = io.BytesIO()
    levels = np.arange(HEIGHT * WIDTH * 3).reshape(HEIGHT, WIDTH, 3) % 251
    Image.fromarray(levels.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def faked(request: pytest.FixtureRequest) -> Iterator[tuple[FakeTriton, PageThread]]:
    """A fake server of the ``models`` of a module, and a page before it."""
    with serving(request.module.models()) as (address, triton), PageThread(address) as page:
        yield triton, page
