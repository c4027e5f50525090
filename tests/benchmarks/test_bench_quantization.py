"""What int8 costs is measured of a network that a build refuses, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from int8_networks import color_network, pictures, pipeline_file

from benchmarks import quantization


@pytest.mark.slow
def test_a_refused_network_has_a_row_with_what_it_would_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert 0 <= row["quantization"]["agreement"]["share"] < 1
