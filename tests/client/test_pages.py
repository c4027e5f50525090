"""The pages of a TIFF, each sent as a picture of its own."""

from __future__ import annotations

import io
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from client_fakes import classification
from PIL import Image
from predict_runs import connect_to, predict

from onestream.client import Tensors
from onestream.client.pages import every_page, pages
from onestream.preprocess import Decode, Definition, Output, compile

LEVELS = (10, 90, 200)


def tiff(*levels: int, order: str = "II") -> bytes:
    """A page of each level."""
    images = [Image.new("RGB", (9 + level % 5, 7), (level, 0, level)) for level in levels]
    file = io.BytesIO()
    images[0].save(file, "TIFF", save_all=True, append_images=images[1:], big_endian=order == "MM")
    return file.getvalue()


def level(data: bytes) -> int:
    """What the server's own decoder sees of a file."""
    (found,) = compile(Definition(operations=[Decode(frame="error"), Output(layout="NHWC", dtype="uint8")])).run([data])
    return int(np.asarray(found)[0, 0, 0])


@pytest.mark.parametrize("order", ["II", "MM"])
def test_every_page_is_a_file_of_one_page(order: str) -> None:
    data = tiff(*LEVELS, order=order)
    assert [level(page) for page in pages(data)] == list(LEVELS)
    for other in (b"", b"II*", b"\xff\xd8\xff", tiff(7), data[:100]):
        assert list(pages(other)) == [other]


def test_a_chain_that_does_not_end_is_one_page() -> None:
    data = bytearray(tiff(*LEVELS))
    first = struct.unpack_from("<I", data, 4)[0]
    (count,) = struct.unpack_from("<H", data, first)
    struct.pack_into("<I", data, first + 2 + 12 * count, first)
    assert list(pages(bytes(data))) == [bytes(data)]


def test_files_without_pages_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.tif").write_bytes(tiff(*LEVELS))
    (tmp_path / "b.jpg").write_bytes(b"\xff\xd8\xff")
    os.mkfifo(tmp_path / "c.tif")
    paths = [tmp_path / name for name in ("a.tif", "b.jpg", "c.tif", "none.tif")]
    found = list(every_page(paths, max_bytes=10_000))
    assert [str(one) for one in found] == [*(f"{paths[0]} page {number}" for number in (1, 2, 3)), *map(str, paths[1:])]
    assert list(every_page(paths, max_bytes=100)) == paths


@pytest.fixture
def scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def answer(_model: str, data: bytes) -> Tensors:
        return classification((f"level {level(data)}", 1, 0.5))

    connect_to(monkeypatch, answer)
    path = tmp_path / "scan.tif"
    path.write_bytes(tiff(*LEVELS))
    return path


def test_predict_has_a_row_a_page(scan: Path) -> None:
    lines = [json.loads(line) for line in predict(scan, "--pages", "all", "--json").stdout.splitlines()]
    assert [(line["path"], line["page"]) for line in lines] == [(str(scan), number) for number in (1, 2, 3)]
    assert [line["labels"] for line in lines] == [[f"level {level}"] for level in LEVELS]
    shown = predict(scan, "--pages", "all").stdout
    assert [f"level {level}" in shown for level in LEVELS] == [True] * 3
    refused = predict(scan, "--pages", "all", "--draw", scan.parent / "out")
    assert refused.exit_code == 2
    assert "leave --pages all out" in refused.stderr
