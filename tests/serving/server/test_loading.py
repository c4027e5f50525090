"""Models that are loaded and unloaded on a running server, by the commands of its repository."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import wait_until
from small_models import infer, is_ready, kill_one, output, processes_of, running, write_ensemble, write_model
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.serving.server.server import Server
from onestream.serving.server.triton import process as triton_process
from onestream.serving.server.triton.model_processes import find_model_processes
from onestream.serving.server.triton.orphan_cleanup import SHM_FOLDER

pytestmark = [pytest.mark.slow, pytest.mark.needs_triton]


@pytest.fixture(scope="module")
def events() -> list[str]:
    return []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, events: list[str]) -> Iterator[Server]:
    """Not the shared one: its repository changes, and a process is killed.

    It takes its machine for one with a GPU, and for one whose kernel refuses it a /dev/shm of its own.
    """
    repository = tmp_path_factory.mktemp("models")
    config = write_model(repository, "early", instances=2) / "config.pbtxt"
    config.write_text(config.read_text() + 'parameters { key: "cpu_instances" value { string_value: "cores" } }\n')
    write_model(repository, "step")
    write_ensemble(repository, "chain", ["step"])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(triton_process, "usable_cores", lambda: 3)
        patched.setattr(triton_process, "with_private_memory", lambda *command: list(command))
        with running(repository, device="gpu", on_event=events.append) as started:
            yield started


def test_regions_in_the_machines_dev_shm_are_closed_to_other_users(server: Server, events: list[str]) -> None:
    """Of later processes too. What a machine with a GPU runs on its CPU has a process per core, as on one without."""
    assert len(processes_of(server, "early")) == 3

    def closed() -> bool:
        regions = {process.region for process in find_model_processes(server.pid).running}
        return bool(regions) and all(stat.S_IMODE((SHM_FOLDER / name).stat().st_mode) == 0o600 for name in regions)

    assert closed(), "when the server says that it is ready"
    assert any("a private /dev/shm" in event for event in events)
    first = kill_one(server, "step")
    wait_until(lambda: server.restarts and set(processes_of(server, "step")) - {first})
    wait_until(lambda: is_ready(server))
    assert first not in processes_of(server, "step")
    wait_until(closed)


def said(server: Server, *arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["models", *arguments, "--repository", str(server.repository)])
    assert result.exit_code == status, result.output
    return result.output


def states(server: Server) -> dict[str, str]:
    return {one["name"]: one["state"] for one in map(json.loads, said(server, "--json").splitlines())}


def test_a_model_that_was_added_is_loaded_and_unloaded(server: Server) -> None:
    write_model(server.repository, "late")
    assert states(server) == {"chain": "READY", "early": "READY", "step": "READY", "late": "NOT LOADED"}
    assert said(server, "load", "late") == "loaded late\n"
    assert output(infer(server, "late", 1)) == 2
    assert said(server, "unload", "late") == "unloaded late\n"
    wait_until(lambda: not is_ready(server, "late"))
    wait_until(lambda: is_ready(server))
    assert "late is not loaded; loaded are chain, early, step" in said(server, "unload", "late", status=1)


def test_what_does_not_load_leaves_the_server_as_it_was(server: Server) -> None:
    write_model(server.repository, "broken", initialize="raise ValueError('no such file')")
    assert "broken does not load" in said(server, "load", "broken", status=1)
    wait_until(lambda: is_ready(server))
    assert output(infer(server, "chain", 1)) == 2
    assert "holds no model nosuch, only: broken, chain" in said(server, "load", "nosuch", status=1)
    # A start loads all of the repository.
    shutil.rmtree(server.repository / "broken")


def test_a_form_that_does_not_load_leaves_the_others_loaded(server: Server) -> None:
    for name, initialize in (("two", "pass"), ("two_fused", "raise ValueError('no such file')")):
        config = write_model(server.repository, name, initialize=initialize) / "config.pbtxt"
        config.write_text(config.read_text() + 'parameters { key: "pipeline" value { string_value: "two" } }\n')
    (server.repository / "two_fused").rename(server.repository.parent / "two_fused")
    said(server, "load", "two")
    (server.repository.parent / "two_fused").rename(server.repository / "two_fused")
    assert "two_fused does not load" in said(server, "load", "two", status=1)
    wait_until(lambda: is_ready(server))
    assert output(infer(server, "two", 1)) == 2
    shutil.rmtree(server.repository / "two_fused")


def test_an_ensemble_comes_with_its_steps_and_keeps_them(server: Server) -> None:
    assert "chain needs step; unload that first" in said(server, "unload", "step", status=1)
    assert said(server, "unload", "chain") == "unloaded chain, step\n"
    assert said(server, "load", "chain") == "loaded chain\n"
    assert output(infer(server, "chain", 1)) == 2


def test_without_a_server_the_command_says_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["models", "--repository", str(tmp_path)])
    assert result.exit_code == 1
    assert f"no server takes commands for {tmp_path}" in result.output
