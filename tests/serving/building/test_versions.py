"""Versions of a pipeline in a repository: names, pins, what is loaded, and what a build refuses."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
import yaml
from builds import build
from cascades import SHARED, write_things
from kind_networks import write_of

from onestream.serving.building.network_source import NetworkSource
from onestream.serving.built.run_folder import run_folder
from onestream.serving.built.versions import (
    VERSIONS_FILE,
    Pin,
    built_versions,
    models_to_load,
    read_pins,
    version_steps,
    write_pin,
)
from onestream.serving.cascade import Cascade
from onestream.serving.engine.network_files import built_from_beside
from onestream.serving.errors import BadPipeline, BadVersion
from onestream.serving.pipeline import Pipeline
from onestream.serving.proxy.settings import public_models


@pytest.fixture(scope="module")
def three_versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("versions")

    def files() -> dict[Path, tuple[int, bytes]]:
        """Of version 1."""
        found = (path for path in (folder / "repository").glob("mine*/**/*") if path.is_file())
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in found if "_v" not in str(path)}

    built(folder, 1)
    before = files()
    later = build(folder / "mine.yaml", folder=folder / "repository", version=2)
    assert later.networks["mine_v2"].source == str(folder / "mine.onnx"), "it takes the network of the served one"
    assert files() == before, "a later version changes no file of version 1"
    for model in (folder / "repository").glob("mine_v2*"):
        shutil.copytree(model, model.with_name(model.name.replace("_v2", "_v10")))
    return folder / "repository"


@pytest.fixture
def repository(three_versions: Path) -> Iterator[Path]:
    """Whose pin, if a test writes one, is taken away."""
    yield three_versions
    (three_versions / VERSIONS_FILE).unlink(missing_ok=True)


def built(folder: Path, version: int, *, name: str = "mine") -> None:
    network = write_of("raw", folder, name)
    build(folder / f"{name}.yaml", folder=folder / "repository", onnx_file=network, version=version)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_the_pinned_version_is_loaded_and_callers_see_the_pipeline(repository: Path) -> None:
    assert built_versions(repository, "mine") == [1, 2, 10]
    assert built_versions(repository, "other") == []
    first = {"mine", "mine_fused", "mine_preprocess", "mine_model", "mine_postprocess"}
    assert set(models_to_load(repository, {}, ("*",))) == first
    # The names that clients call bring the models of their version.
    assert set(models_to_load(repository, {"mine": Pin(version=2)}, ("*",))) == {"mine", "mine_fused"}
    assert models_to_load(repository, {}, ("mine_v2",)) == ("mine_v2",)
    assert [model.name for model in public_models(repository)] == ["mine", "mine_fused"]
    assert [model.name for model in public_models(repository, ["mine_v2"])] == ["mine_v2"]


@pytest.mark.parametrize("pinned", [1, 2])
def test_a_video_model_comes_with_the_network_that_it_asks(tmp_path: Path, pinned: int) -> None:
    committed = Path(__file__).parents[3] / "model_repository"
    for name in ("classify_video", "classify_model"):
        shutil.copytree(committed / name, tmp_path / name, ignore=shutil.ignore_patterns("*.onnx", "*.plan"))
    later = tmp_path / "classify_v2_video"
    shutil.copytree(tmp_path / "classify_video", later)
    text = (later / "config.pbtxt").read_text()
    (later / "config.pbtxt").write_text(text.replace('string_value: "classify"', 'string_value: "classify_v2"'))
    pins = {"classify": Pin(version=pinned)}
    network = {1: "classify_model", 2: "classify_v2_model"}[pinned]
    assert models_to_load(tmp_path, pins, ["classify_video"]) == ("classify_video", network)
    assert models_to_load(tmp_path, pins, [network, "classify_video"]) == (network, "classify_video"), "each once"
    assert models_to_load(tmp_path, pins, ["classify_fused"]) == ("classify_fused",), "asks no other"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a cascade that has streams, with its repository of two versions."""
    folder = tmp_path_factory.mktemp("things")
    networks = write_things(folder, **SHARED)
    build(folder / "things.yaml", folder=folder / "repository", onnx_files=networks)
    later = build(folder / "things.yaml", folder=folder / "repository", version=2)
    found = {stage: network.source for stage, network in later.networks.items()}
    assert found == {stage: str(path) for stage, path in networks.items()}, "it takes the networks of the served one"
    return folder


def test_a_version_of_a_cascade_has_networks_of_its_own(sources: Path) -> None:
    """Triton does not know that they are asked."""
    things = sources / "repository"
    assert built_versions(things, "things") == [1, 2]
    for version, name in ((1, "things"), (2, "things_v2")):
        assert version_steps(things, "things", version) == [f"{name}_find_model", f"{name}_name_model"]
    networks = {"things_find_model", "things_name_model"}
    forms = {"things", "things_fused", "things_video"}
    assert set(models_to_load(things, {}, ("*",))) == forms | networks
    pinned = {"things": Pin(version=2, previous=1)}
    later = {"things_v2_find_model", "things_v2_name_model"}
    assert set(models_to_load(things, pinned, ("*",))) == forms | later
    for name in ("things", "things_video"):
        assert set(models_to_load(things, pinned, (name,))) == {name} | later
        assert set(models_to_load(things, {}, (name,))) == {name} | networks
    assert models_to_load(things, pinned, ("things_fused",)) == ("things_fused",)
    assert {model.name for model in public_models(things)} == forms


def test_no_other_pipeline_takes_the_place_of_a_version(sources: Path) -> None:
    things = sources / "repository"
    before = contents(things)
    with pytest.raises(BadPipeline, match="things_v2_find_model belongs to a later version of things; rename"):
        built(sources, 1, name="things_v2_find")
    assert contents(things) == before
    described = yaml.safe_load((sources / "things.yaml").read_text())
    described["stages"] = {"find": described["stages"]["find"], "v2_find": described["stages"]["name"]}
    with pytest.raises(BadPipeline, match=r"stages\.v2_find: so the models of a later version are called"):
        Cascade.from_fields(sources / "things.yaml", {"name": "things", **described})


def test_pins_in_the_run_folder_come_first(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pin = Pin(version=2, previous=1)
    write_pin(repository, "mine", pin)
    monkeypatch.setenv("ONESTREAM_RUN_DIR", str(tmp_path / "run"))
    assert read_pins(repository) == {"mine": pin}
    run_folder(repository).mkdir(parents=True)
    write_pin(repository, "mine", Pin(version=10))
    assert read_pins(repository) == {"mine": Pin(version=10)}
    assert run_folder(repository) != run_folder(tmp_path), "each repository has its own"
    monkeypatch.delenv("ONESTREAM_RUN_DIR")
    assert read_pins(repository) == {"mine": pin}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "no list of pinned versions"),
        ('{"mine": {"version": 0}}', "no list of pinned versions"),
        ('{"mine": {"version": 3}}', "holds no version 3 of mine, only: 1, 2, 10"),
        ('{"other": {"version": 1}}', "holds no version 1 of other, only: none"),
    ],
)
def test_a_pin_that_cannot_be_served_is_refused(repository: Path, text: str, reason: str) -> None:
    (repository / VERSIONS_FILE).write_text(text)
    with pytest.raises(BadVersion, match=reason):
        read_pins(repository)


def test_a_build_refuses_what_would_touch_what_is_served(tmp_path: Path) -> None:
    with pytest.raises(BadVersion, match="holds no mine to be version 1"):
        built(tmp_path, 2)
    for name in ("mine", "mine_v2", long := "t" * 194):
        (tmp_path / "repository" / name).mkdir(parents=True)
        (tmp_path / "repository" / name / "config.pbtxt").touch()
    with pytest.raises(BadVersion, match="mine_v2 is a pipeline of its own"):
        built(tmp_path, 2)
    write_things(tmp_path, name=long)
    with pytest.raises(BadPipeline, match="at most 200 are taken"):
        build(tmp_path / f"{long}.yaml", folder=tmp_path / "repository", version=2)


@pytest.mark.parametrize(
    ("pin", "version", "reason"),
    [
        (Pin(version=2), 2, "version 2 of mine is served; build another: --version 3"),
        (Pin(version=2, previous=1), 1, r"version 1 of mine is what --back returns to \(version 2 is served\); .* 3"),
        (Pin(version=1, previous=2), 1, "version 1 of mine is served; build another: --version 3"),
    ],
)
def test_what_a_rollout_serves_is_not_replaced(repository: Path, pin: Pin, version: int, reason: str) -> None:
    write_pin(repository, "mine", pin)
    file = repository.parent / "mine.yaml"
    other = file.with_name("other") / file.name
    other.parent.mkdir(exist_ok=True)
    other.write_text(f"{file.read_text()}serving: {{max_queue_size: 3}}\n")
    before = contents(repository)
    with pytest.raises(BadVersion, match=reason):
        build(other, folder=repository, onnx_file=file.with_suffix(".onnx"), version=version)
    assert contents(repository) == before
    if (version, pin.previous) == (2, None):
        assert build(file, folder=repository, onnx_file=file.with_suffix(".onnx"), version=2).written == [], "the same"


def test_nor_has_it_another_network(sources: Path, tmp_path: Path) -> None:
    repository = Path(shutil.copytree(sources / "repository", tmp_path / "repository"))
    write_pin(repository, "things", Pin(version=2, previous=1))
    networks = write_things(sources, **SHARED)
    other = onnx.load(networks["name"])
    other.doc_string = "trained again"
    onnx.save(other, tmp_path / "name.onnx")
    file, again = sources / "things.yaml", networks | {"name": tmp_path / "name.onnx"}
    assert build(file, folder=repository, onnx_files=networks, version=2).written == [], "the same"
    for version in (1, 2):
        with pytest.raises(BadVersion, match=r"of things is .*; build another: --version 3"):
            build(file, folder=repository, onnx_files=again, version=version)


def test_a_new_version_takes_the_network_of_the_served_one(tmp_path: Path) -> None:
    """A pinned version that is gone can be built."""
    file, folder = tmp_path / "mine.yaml", tmp_path / "repository"
    folder.mkdir()
    (folder / VERSIONS_FILE).write_text('{"mine": {"version": 2, "previous": 1}}')
    built(tmp_path, 1)
    other = Path(shutil.copy(tmp_path / "mine.onnx", tmp_path / "other.onnx"))
    build(file, folder=folder, onnx_file=other, version=2)
    assert built_versions(folder, "mine") == [1, 2]
    told: list[str] = []
    with pytest.raises(BadPipeline, match=r"serving\.precision is int8, and this network was not calibrated before"):
        build(file, folder=folder, version=3, precision="int8", progress=told.append)
    assert told == [f"preparing the network {other}"]


def test_a_version_that_is_built_again_keeps_its_own_network(repository: Path) -> None:
    """Where its folder knows none, it takes that of the served version."""
    served, own = (repository / name / "1" / "model.onnx" for name in ("mine_model", "mine_v2_model"))
    other = repository.parent / "other.onnx"
    other.touch()
    pipeline, note = Pipeline.from_file(repository.parent / "mine.yaml"), built_from_beside(own)
    before = note.read_text()
    found = []
    for text in (f"{other}\n", None):
        note.write_text(text) if text else note.unlink()
        found.append(NetworkSource.of(pipeline, None, files=[own], served=[served], anchors=None).file)
    note.write_text(before)
    assert found == [other, repository.parent / "mine.onnx"]
