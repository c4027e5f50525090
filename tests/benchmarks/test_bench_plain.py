"""The plain competitor does the same work, with the same inputs and outputs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from benchmarks.competitors import PIPELINE, make_repository, plain_settings
from onestream.preprocess import compile
from onestream.serving.building.repository import warmup_photo
from onestream.serving.building.triton_config import from_text
from onestream.serving.pipeline import Pipeline


def test_its_preprocessing_is_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    plain = importlib.import_module("benchmarks.plain.preprocess")
    (expected,) = compile(Pipeline.from_file(PIPELINE).preprocess, backend="reference").run([warmup_photo()])
    assert isinstance(expected, np.ndarray)
    np.testing.assert_allclose(plain.preprocess(warmup_photo())[0], expected, rtol=0, atol=1e-6)


def test_every_setting_is_a_complete_ensemble_with_our_inputs_and_outputs(tmp_path: Path) -> None:
    settings = plain_settings(4)
    assert {(s.instances, s.threads) for s in settings} == {(1, 0), (1, 1), (4, 0), (4, 1)}
    make_repository(tmp_path, settings)
    ours = from_text((tmp_path / "classify" / "config.pbtxt").read_text())
    for setting in settings:
        ensemble = from_text((tmp_path / setting.name / "config.pbtxt").read_text())
        assert ensemble.max_batch_size == ours.max_batch_size
        assert [(t.name, t.data_type, list(t.dims)) for t in ensemble.input] == [
            (t.name, t.data_type, list(t.dims)) for t in ours.input
        ]
        assert [(t.name, t.data_type, list(t.dims)) for t in ensemble.output] == [
            (t.name, t.data_type, list(t.dims)) for t in ours.output
        ]
        for step in ensemble.ensemble_scheduling.step:
            config = from_text((tmp_path / step.model_name / "config.pbtxt").read_text())
            assert config.name == step.model_name
            assert config.HasField("dynamic_batching")
            assert config.max_batch_size == ours.max_batch_size
            assert (tmp_path / step.model_name / "1" / "model.py").is_file()
        network = from_text((tmp_path / f"{setting.name}_network" / "config.pbtxt").read_text())
        assert network.instance_group[0].count == setting.instances
        assert network.parameters["threads"].string_value == str(setting.threads)
        assert (tmp_path / f"{setting.name}_network" / "1" / "model.onnx").is_file()
