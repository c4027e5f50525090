"""Rows that workers make in their own process: those of a real server, for every kind of pipeline, bit by bit."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import detectors
import pyarrow.parquet as parquet
import pytest
from builds import build
from colored_cells import GRID
from kind_networks import EMBED, write_of
from PIL import Image, ImageDraw, ImageFont
from shared_server import CLASSIFY, READ, SharedServer
from windows import WINDOWS

from onestream.cli.bulk.outputs import write_parquet
from onestream.cli.bulk.rows import Row
from onestream.cli.bulk.run import Run
from onestream.cli.bulk.sources import samples
from onestream.client import Classification, Client, Detections, Embedding, Outputs, Reading, Regions
from onestream.serving.models.in_process import InProcess

pytest.importorskip("ray")

from onestream.cli.bulk.ray.answering import InProcessRows

ROOT = Path(__file__).parents[3]
KINDS = {
    "cells": Detections,
    "grid": Regions,
    "read": Reading,
    "embed": Embedding,
    "windows": Outputs,
    "classify": Classification,
}
pytestmark = [
    pytest.mark.needs_triton,
    pytest.mark.slow,
    pytest.mark.serves(
        detectors.RED_CELLS,
        GRID,
        replace(READ, models=("read_fused",)),
        replace(EMBED, models=("embed_fused",)),
        WINDOWS,
        CLASSIFY,
    ),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Photos, lines of text, nothing to be found, and files that cannot be used."""
    folder = tmp_path_factory.mktemp("photos")
    page = Image.new("RGB", (420, 180), "white")
    for number, line in enumerate(("Hello 12", "rows of Ray")):
        ImageDraw.Draw(page).text((30, 25 + 70 * number), line, "black", ImageFont.load_default(40))
    page.save(folder / "page.png")
    Image.new("RGB", (64, 48)).save(folder / "black.png")
    Image.new("RGB", (80, 60), "white").save(folder / "white.png")
    (folder / "cut.jpg").write_bytes((ROOT / "examples" / "photos" / "cat.jpg").read_bytes()[:3000])
    (folder / "text.jpg").write_bytes(b"no picture")
    (folder / "empty.jpg").write_bytes(b"")
    return [str(ROOT / "examples" / "photos"), str(folder), str(folder / "gone.jpg")]


def timeless(rows: Iterator[Row]) -> list[str]:
    """The rows as JSON, which has every bit of their numbers, without the time that they took."""
    told = (row if row.result is None else replace(row, result=replace(row.result, latency_ms=0.0)) for row in rows)
    return [row.to_json() for row in told]


@pytest.mark.parametrize("name", KINDS)
def test_rows_are_those_of_a_server(server: SharedServer, photos: list[str], name: str) -> None:
    maker = InProcessRows(InProcess(server.repository / f"{name}_fused"), top=2)
    here = timeless(maker.rows(samples(photos)))
    with Client(server.grpc_address) as client:
        run = Run(client, samples(photos), pipeline=f"{name}_fused", top=2, in_flight=4, timeout_s=60)
        assert here == timeless(run.rows())
    assert sum('"error"' in row for row in here) == 4
    assert type(maker.example) is KINDS[name]
    assert name != "read" or any("rows of Ray" in row for row in here)
    # Also a part in which every image failed, or nothing was found, has the same columns, so that all are one table.
    schemas = []
    for sources in (photos, [f"{photos[1]}/black.png"], [f"{photos[1]}/gone.jpg"]):
        file = io.BytesIO()
        write_parquet(file, maker.rows(samples(sources)), like=maker.example, top=2)
        schemas.append(parquet.read_schema(io.BytesIO(file.getvalue())))
    assert schemas[0] == schemas[1] == schemas[2]


def test_a_pipeline_that_refuses_the_photos_of_the_package_has_an_example(tmp_path: Path) -> None:
    network, file = write_of("classification", tmp_path, "png"), tmp_path / "png.yaml"
    file.write_text(file.read_text() + "limits: {formats: [PNG], max_pixels: 5000}\n")
    build(file, folder=tmp_path / "models", onnx_file=network)
    assert isinstance(InProcessRows(InProcess(tmp_path / "models" / "png_fused"), top=1).example, Classification)
