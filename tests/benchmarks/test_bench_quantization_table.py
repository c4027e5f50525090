"""The table of what int8 costs, from a result file that builds filled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from int8_networks import color_network, in_int8, pictures, pipeline_file

from benchmarks import quantization, quantization_table
from benchmarks.result_files import Raw, read


@pytest.mark.slow
def test_a_refused_network_is_shown_with_what_it_would_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = in_int8(tmp_path / "good").quantizations["colors"]
    file, own = pipeline_file(tmp_path / "ruined", color_network(layers=6, constant=3e4))
    monkeypatch.setattr(quantization, "pictures", lambda _pipeline, folder: pictures(folder))
    whole = quantization.build

    def with_its_network(file: Path, **options: Any) -> Any:
        return whole(file, onnx_file=own, **options)

    monkeypatch.setattr(quantization, "build", with_its_network)
    (row,) = quantization.networks(file, tmp_path)
    assert row["network"] == "colors"
    assert row["refused"]
    assert yaml.safe_load(file.read_text())["serving"] == {}
    taken = {"network": "fine", "quantization": good.model_dump(mode="json"), "build_s": 18.6, "refused": False}
    results = {
        "started_utc": "2026-01-02T03:04:05+00:00",
        "commit": "0123456789abcdef",
        "machine": {"cpu": "Some CPU"},
        "versions": {"onnxruntime": "1.2.3"},
        "networks": [row, taken],
    }
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / quantization_table.FILE_NAME).write_text(json.dumps(results))
    (found,) = read(tmp_path, quantization_table.FILE_NAME, Raw)
    table = quantization_table.table(found)
    ruined, fine = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[-2:])
    assert (ruined[0], ruined[-1]) == ("colors", "refuses it")
    assert (fine[0], *fine[-2:]) == ("fine", "19", "takes it")
    assert fine[1] == "best classes with a score above 0.5 that are the same: 1.000 of 12"
    assert fine[3:5] == [f"{good.speed.float32_ms:.2f}", f"{good.speed.int8_ms:.2f}"]
