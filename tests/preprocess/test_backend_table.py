"""The tables of backends are what the rest of the code asks: nobody else compares a backend's name."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import get_args

import pytest

from onestream.cli.augment import augment
from onestream.preprocess import CannotCompile, Definition, compile, compile_from_picture
from onestream.preprocess.backends.base import BackendName, CpuBackendName, GpuBackendName
from onestream.preprocess.backends.table import BACKENDS, backend_named
from onestream.preprocess.tolerances import TOLERANCES
from onestream.preprocess.video.clips.frames import VideoBackend
from onestream.preprocess.video.clips.maker import VIDEO_BACKENDS

ROOT = Path(__file__).parents[2]
ROOMS = ("wire", "preprocess", "postprocess", "serving", "client", "measure", "cli")
TABLES = {ROOT / "preprocess/tolerances.py", *(ROOT / "preprocess/backends").glob("*.py")}


def compared(path: Path, names: set[str]) -> list[str]:
    """Where a file compares a value with a name, matches it, or hands a name on as ``backend``."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        values: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            values = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue) or (isinstance(node, ast.keyword) and node.arg == "backend"):
            values = [node.value]
        constants = {one.value for value in values for one in ast.walk(value) if isinstance(one, ast.Constant)}
        found += [f"{path.relative_to(ROOT)}:{values[0].lineno}: {name}" for name in names & constants]
    return found


def test_nobody_compares_the_name_of_a_backend() -> None:
    names = set(get_args(BackendName)) | set(get_args(VideoBackend))
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py") if path not in TABLES]
    assert [line for path in files for line in compared(path, names)] == []
    assert compared(ROOT / "tests/preprocess/test_damaged_files.py", {"ellipsis"}) == []
    (seen,) = compared(Path(__file__), {"a name"})
    assert seen.endswith("a name")
    assert "a name" != "another"


def test_names_are_those_of_the_tables() -> None:
    assert get_args(BackendName) == tuple(BACKENDS)
    assert get_args(VideoBackend) == tuple(VIDEO_BACKENDS)
    assert set(get_args(CpuBackendName)) == {name for name, row in BACKENDS.items() if "cpu" in row.devices}
    assert set(get_args(GpuBackendName)) == {name for name, row in BACKENDS.items() if "gpu" in row.devices}
    # The command does not import what it measures before it runs.
    option = inspect.signature(augment, eval_str=True).parameters["backend"].annotation
    assert get_args(get_args(option)[0]) == get_args(CpuBackendName)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_row_says_all_that_is_asked(name: BackendName) -> None:
    row, definition = BACKENDS[name], Definition.from_yaml("operations: [{op: decode}, {op: output}]")
    bounded = {(entry.backend, entry.device) for entry in TOLERANCES}
    assert {(row.judged_as, device) for device in row.devices} <= bounded
    assert row.install.startswith("pip install")
    for device in {"cpu", "gpu"} - set(row.devices):
        with pytest.raises(CannotCompile, match=f"the {name} backend runs on the device '{row.devices[0]}' only"):
            compile(definition, backend=name, device=device)
    if row.pictures_on == "gpu":
        with pytest.raises(CannotCompile, match="worked on by 'reference' and 'dali', on the device 'cpu'"):
            compile_from_picture(definition, backend=name)


def test_an_unknown_backend_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(CannotCompile, match="unknown backend 'cv3'; available: reference, dali, cvcuda"):
        backend_named("cv3")  # type: ignore[arg-type]
