"""``serving.forms``: one form alone, whose models answer under both names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from builds import build
from cascades import write_things
from kind_networks import write_of

from onestream.postprocess.network import NetworkOutput
from onestream.serving.building.build import Built
from onestream.serving.building.pipeline_repository import plan
from onestream.serving.building.repository import Repository
from onestream.serving.built.triton_config import from_text
from onestream.serving.built.versions import models_to_load, networks_asked, parameters_of
from onestream.serving.errors import BadPipeline, BadVersion
from onestream.serving.models.in_process import fused_config
from onestream.serving.pipeline import Pipeline


def built(folder: Path, *, version: int = 1, **fields: Any) -> Built:
    """A pipeline ``mine`` with these fields beside, in the folder's repository."""
    network, file = write_of("raw", folder), folder / "mine.yaml"
    if fields:
        file.write_text(file.read_text() + yaml.safe_dump(fields))
    return build(file, folder=folder / "repository", onnx_file=network, version=version)


def steps(repository: Path, model: str) -> list[str]:
    """The steps of an ensemble."""
    config = from_text((repository / model / "config.pbtxt").read_text())
    assert config.platform == "ensemble"
    return [step.model_name for step in config.ensemble_scheduling.step]


def test_the_fused_form_answers_to_the_plain_name_too(tmp_path: Path) -> None:
    made = built(tmp_path, serving={"forms": ["fused"]})
    assert made.models == ["mine", "mine_fused"] == sorted(path.name for path in made.folder.iterdir())
    assert steps(made.folder, "mine") == ["mine_fused"]
    stated = parameters_of(made.folder, "mine")
    assert {"limits", "kind", "postprocess", "max_pixels"} < stated.keys()
    assert not {"cpu_instances", "cpu_queue", "threads"} & stated.keys()
    assert (made.folder / "mine_fused" / "1" / "built_from.txt").exists()
    again = build(tmp_path / "mine.yaml", folder=made.folder)
    assert again.written == [], "without --onnx, from where the network came"


def planned(folder: Path, **fields: Any) -> Repository:
    """The models of a pipeline ``mine`` with these fields, whose configurations are written."""
    write_of("raw", folder)
    file = folder / "mine.yaml"
    file.write_text(file.read_text() + yaml.safe_dump(fields))
    made = plan(Pipeline.from_file(file), [NetworkOutput("y", "float32", (7,))], labels=None)
    for path, content in made.files(source="mine.yaml").items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return made


def test_a_stream_keeps_the_network_that_it_asks(tmp_path: Path) -> None:
    made = planned(tmp_path, serving={"forms": ["fused"]}, video={})
    assert made.model_names == ["mine", "mine_model", "mine_fused", "mine_video"]


def test_the_ensemble_answers_to_the_name_of_the_fused_form_too(tmp_path: Path) -> None:
    made = planned(tmp_path, serving={"forms": ["ensemble"]})
    assert made.model_names == ["mine", "mine_preprocess", "mine_model", "mine_postprocess", "mine_fused"]
    assert steps(tmp_path, "mine_fused") == ["mine_preprocess", "mine_model", "mine_postprocess"]
    assert steps(tmp_path, "mine") == steps(tmp_path, "mine_fused")
    with pytest.raises(
        BadPipeline, match=r"^mine_fused has no process of its own, since serving\.forms leaves out fused"
    ):
        fused_config(tmp_path / "mine_fused", "cpu")


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


def test_models_of_a_form_that_is_left_out_must_go_first(tmp_path: Path) -> None:
    built(tmp_path)
    with pytest.raises(BadPipeline, match="holds mine_preprocess, mine_model, mine_postprocess of an earlier build"):
        built(tmp_path, serving={"forms": ["fused"]})


FUSED = {"serving": {"forms": ["fused"]}}


@pytest.mark.parametrize(("first", "second"), [({}, FUSED), (FUSED, {})])
def test_versions_have_both_forms(first: dict[str, Any], second: dict[str, Any], tmp_path: Path) -> None:
    built(tmp_path, **first)
    with pytest.raises(BadVersion, match=r"expected serving.forms: \[ensemble, fused\] in each"):
        built(tmp_path, version=2, **second)


def test_an_option_of_a_form_that_is_left_out_is_refused(tmp_path: Path) -> None:
    serving = {"forms": ["fused"], "triton": {"preprocess": {}}}
    with pytest.raises(BadPipeline, match=r"preprocess: no such role \(allowed: ensemble, fused\)"):
        built(tmp_path, serving=serving)
