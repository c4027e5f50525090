"""``serving.forms``: one form alone, whose models answer under both names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from builds import build
from cascades import write_things
from kind_networks import write_of
from planned_models import config, written

from onestream.serving.building.build import Built
from onestream.serving.built.versions import models_to_load, networks_asked, parameters_of
from onestream.serving.errors import BadPipeline, BadVersion
from onestream.serving.models.in_process import fused_config


def described(folder: Path, **fields: Any) -> tuple[Path, Path]:
    """A pipeline ``mine`` with these fields beside, and its network."""
    network, file = write_of("raw", folder), folder / "mine.yaml"
    if fields:
        file.write_text(file.read_text() + yaml.safe_dump(fields))
    return file, network


def built(folder: Path, *, version: int = 1, **fields: Any) -> Built:
    file, network = described(folder, **fields)
    return build(file, folder=folder / "repository", onnx_file=network, version=version)


def steps(repository: Path, model: str) -> list[str]:
    """The steps of an ensemble."""
    assert config(repository, model).platform == "ensemble"
    return [step.model_name for step in config(repository, model).ensemble_scheduling.step]


def test_the_fused_form_answers_to_the_plain_name_too(tmp_path: Path) -> None:
    made = built(tmp_path, serving={"forms": ["fused"]})
    assert made.models == ["mine", "mine_fused"] == sorted(path.name for path in made.folder.iterdir())
    assert steps(made.folder, "mine") == ["mine_fused"]
    stated = parameters_of(made.folder, "mine")
    assert {"limits", "kind", "postprocess", "max_pixels"} < stated.keys()
    assert not {"cpu_instances", "cpu_queue", "threads"} & stated.keys()
    again = build(tmp_path / "mine.yaml", folder=made.folder)
    assert again.written == [], "without --onnx, from where the network came"


def test_the_ensemble_answers_to_the_name_of_the_fused_form_too(tmp_path: Path) -> None:
    file, network = described(tmp_path, serving={"forms": ["ensemble"]})
    folder, _ = written(file, onnx.load(network))
    roles = ["mine_preprocess", "mine_model", "mine_postprocess"]
    assert {path.name for path in folder.iterdir()} == {"mine", *roles, "mine_fused"}
    assert steps(folder, "mine_fused") == steps(folder, "mine") == roles
    with pytest.raises(BadPipeline, match=r"^mine_fused has no process of its own, since serving\.forms leaves out f"):
        fused_config(folder / "mine_fused", "cpu")


def test_a_stream_keeps_the_network_that_it_asks(tmp_path: Path) -> None:
    file, network = described(tmp_path, serving={"forms": ["fused"]}, video={})
    found = {path.name for path in written(file, onnx.load(network))[0].iterdir()}
    assert found == {"mine", "mine_model", "mine_fused", "mine_video"}


@pytest.mark.parametrize(
    ("forms", "models"),
    [
        (["fused"], ["things", "things_fused"]),
        (["ensemble"], ["things", "things_find_model", "things_name_model", "things_fused"]),
    ],
)
def test_a_cascade_in_one_form(forms: list[str], models: list[str], tmp_path: Path) -> None:
    networks = write_things(tmp_path, serving={"forms": forms})
    made = build(tmp_path / "things.yaml", folder=tmp_path / "repository", onnx_files=networks)
    assert made.models == models
    (left_out,) = {"things", "things_fused"} - {"things_fused" if forms == ["fused"] else "things"}
    assert steps(made.folder, left_out) == ["things_fused" if left_out == "things" else "things"]
    assert networks_asked(made.folder, left_out) == []
    assert set(models_to_load(made.folder, {}, ["things"])) <= set(models)
    if forms == ["fused"]:  # where stages have no models
        assert build(tmp_path / "things.yaml", folder=made.folder).written == []


FUSED = {"serving": {"forms": ["fused"]}}
OF_BOTH = r"expected serving.forms: \[ensemble, fused\] in each"


@pytest.mark.parametrize(
    ("first", "second", "version", "error", "said"),
    [
        ({}, FUSED, 2, BadVersion, OF_BOTH),
        (FUSED, {}, 2, BadVersion, OF_BOTH),
        ({}, FUSED, 1, BadPipeline, "holds mine_preprocess, mine_model, mine_postprocess of an earlier build"),
    ],
)
def test_models_of_another_form_must_go_first_and_versions_have_both(
    first: dict[str, Any], second: dict[str, Any], version: int, error: type[Exception], said: str, tmp_path: Path
) -> None:
    built(tmp_path, **first)
    with pytest.raises(error, match=said):
        built(tmp_path, version=version, **second)


def test_an_option_of_a_form_that_is_left_out_is_refused(tmp_path: Path) -> None:
    serving = {"forms": ["fused"], "triton": {"preprocess": {}}}
    with pytest.raises(BadPipeline, match=r"preprocess: no such role \(allowed: ensemble, fused\)"):
        built(tmp_path, serving=serving)
