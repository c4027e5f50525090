"""The table of ``onestream bench streams``: what it says that it measured."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from onestream.cli.bench.command import streams_table

MEASURED = Path(__file__).parents[2] / "benchmarks" / "results" / "amd-epyc-2-cores" / "streams.json"


@pytest.mark.parametrize(
    ("precision", "beside"), [("float32", "OpenCV in the client"), ("int8", "OpenCV in the client, network in float32")]
)
def test_the_precision_of_each_network_is_named(precision: str, beside: str) -> None:
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))["cases"]["classify, every 1"]
    shown = StringIO()
    Console(file=shown, width=160).print(streams_table(measured | {"precision": precision}))
    lines = [line.strip() for line in shown.getvalue().splitlines()]
    assert lines[0].startswith(f"{measured['pipeline']} in {precision}, 1920x1080 ")
    (opencv,) = [line for line in lines if line.startswith("OpenCV")]
    assert opencv.startswith(f"{beside}  ")
