"""The tables of backends are what the rest of the code asks: nobody else compares a backend's name."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_args

import compared_names
import pytest
from compared_names import compared, product_files

from onestream.cli.augment import augment
from onestream.preprocess import CannotCompile, Definition, compile, compile_from_picture
from onestream.preprocess.backends.base import BackendName, CpuBackendName, GpuBackendName
from onestream.preprocess.backends.table import BACKENDS, backend_named
from onestream.preprocess.tolerances import TOLERANCES
from onestream.preprocess.video.clips.frames import VideoBackend
from onestream.preprocess.video.clips.maker import VIDEO_BACKENDS

TABLES = {"preprocess/tolerances.py", "preprocess/backends"}


def test_nobody_compares_the_name_of_a_backend() -> None:
    names = set(get_args(BackendName)) | set(get_args(VideoBackend))
    assert [line for path in product_files(but=TABLES) for line in compared(path, names)] == []


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


def test_a_comparison_is_found_whatever_its_form(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compared_names, "ROOT", tmp_path)
    file = tmp_path / "some.py"
    file.write_text(
        'x == "a"\ny in ("a", "b")\ncompile(backend="a")\nmatch x:\n    case "a":\n        pass\nname = "a"\n'
    )
    assert compared(file, {"a", "c"}) == [f"some.py:{line}: a" for line in (1, 2, 3, 5)]
