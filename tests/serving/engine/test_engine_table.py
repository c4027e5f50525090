"""The table of engines is what the rest of the code asks: nobody else compares an engine's name."""

from __future__ import annotations

from typing import get_args

import pytest
from compared_names import compared, product_files

from onestream.serving.engine.table import CPU_ENGINES, ENGINES
from onestream.serving.pipeline import CpuEngineName, CpuOptions, EngineName, GpuOptions

TABLES = {"serving/engine"}


def test_nobody_compares_the_name_of_an_engine() -> None:
    assert [line for path in product_files(but=TABLES) for line in compared(path, {*ENGINES, *CPU_ENGINES})] == []


def test_names_are_those_of_the_table() -> None:
    assert get_args(EngineName) == tuple(ENGINES)
    assert get_args(CpuEngineName) == tuple(CPU_ENGINES)
    assert CpuOptions().engine == "onnxruntime"


@pytest.mark.parametrize("name", ENGINES)
def test_triton_runs_what_the_table_says(name: EngineName) -> None:
    row = ENGINES[name]
    assert set(row.precisions_on_triton) <= set(row.precisions)
    options = GpuOptions(engine=name, precision="tf32")
    assert bool(row.on_triton(options).cuda_provider) is not row.needs_plan
    assert row.on_triton(options, in_int8=True).file == ("" if row.needs_plan else "model.float32.onnx")
