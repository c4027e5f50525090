"""``onestream serve`` as a process: what it says, what ends it, and what outlives it, which is nothing."""

from __future__ import annotations

import contextlib
import http.client
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from patience import wait_until
from proxies import refused
from small_models import infer, is_gone, is_ready, write_model, write_plus_one_and_two

from onestream.serving.server.triton import orphan_cleanup
from onestream.serving.server.triton.model_processes import find_model_processes, read_stat

SERVE = [sys.executable, "-c", "import typer; from onestream.cli.serve.command import serve; typer.run(serve)"]
BUSY = "__import__('ctypes').PyDLL(None).sleep(600)"
"""Native code that keeps Python's lock: no thread of the process could end it."""


@pytest.fixture(autouse=True)
def logs_in_the_test_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of failures are kept; keep them where pytest removes them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


@contextlib.contextmanager
def serve(repository: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The command, killed at the end."""
    ports = [f"--{service}-port=0" for service in ("http", "grpc", "metrics")]
    command = [*SERVE, f"--repository={repository}", "--device=cpu", f"--log-file={tmp_path / 'triton.log'}", *ports]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def at(address: str) -> Any:
    return SimpleNamespace(http_address=address)


def send_and_forget(address: str, model: str) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        infer(at(address), model, timeout_s=30)


def ready_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def descendants(process: subprocess.Popen[str]) -> list[int]:
    """The process ids of the tritonserver and its model processes, and last that of its guard."""
    (guard,) = children(process.pid)
    (triton,) = children(guard)
    return [triton, *(p.pid for p in find_model_processes(triton).running), guard]


def children(pid: int) -> list[int]:
    stats = filter(None, (read_stat(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()))
    return [stat.pid for stat in stats if stat.parent_pid == pid and not stat.is_zombie]


def answers(address: str) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return is_ready(at(address))
    return False


def address_of(process: subprocess.Popen[str]) -> str:
    """The address that the command prints when it is ready."""
    return ready_line(process).split()[1].removeprefix("http://")


@contextlib.contextmanager
def at_work(process: subprocess.Popen[str], address: str) -> Iterator[list[int]]:
    """A request is inside the model ``busy`` of a command; gives the ids of the processes below the command."""
    pids = descendants(process)
    request = threading.Thread(target=send_and_forget, args=(address, "busy"))
    request.start()
    time.sleep(0.5)  # the request is inside the process
    yield pids
    request.join()


@pytest.mark.slow
@pytest.mark.needs_triton
def test_the_command_shows_readiness_and_stops_at_a_signal(tmp_path: Path) -> None:
    """Though one of its models does not load, and its log cannot be written."""
    repository = tmp_path / "repository"
    write_plus_one_and_two(repository)
    write_model(repository, "blank", initialize="raise ValueError('labels.txt line 3 is empty')")
    (tmp_path / "triton.log").symlink_to("/dev/full")
    with serve(repository, tmp_path) as process:
        line = ready_line(process)
        assert line.startswith("ready: http://127.0.0.1:")
        assert "models: plus_one, plus_two without: blank (cpu" in line
        assert infer(at(line.split()[1].removeprefix("http://")), "plus_two").status == 200
        pids = descendants(process)
        assert len(pids) == 3
        process.send_signal(signal.SIGINT)
        _, progress = process.communicate(timeout=20)
        assert process.returncode == 0
    assert "loaded plus_one" in progress
    assert "model 'blank' failed to load: ValueError: labels.txt line 3 is empty" in progress
    assert progress.count("cannot be written, its lines are lost: No space left") == 1
    assert all(is_gone(pid) for pid in pids)


@pytest.mark.slow
@pytest.mark.needs_triton
def test_the_command_needs_no_reader_and_stops_at_many_signals(tmp_path: Path) -> None:
    write_plus_one_and_two(tmp_path / "repository")
    with serve(tmp_path / "repository", tmp_path) as process:
        address = address_of(process)
        assert process.stderr is not None
        process.stderr.close()
        triton, model, _ = descendants(process)
        os.kill(model, signal.SIGKILL)
        # The command has something to say now.
        wait_until(lambda: not answers(address))
        wait_until(lambda: answers(address))
        assert triton in descendants(process)
        # As `timeout` and container runtimes do: several at once. All must find the command able to stop.
        for number in [signal.SIGTERM, signal.SIGINT, signal.SIGHUP] * 100:
            process.send_signal(number)
        assert process.wait(timeout=20) == 0


def test_the_command_says_why_it_cannot_start(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    contradiction = refused("serve", f"--repository={tmp_path}", "--public", "--shared-memory")
    assert "--shared-memory" in contradiction
    assert "--public" in contradiction
    said = refused("serve", f"--repository={tmp_path}", "--device=cpu") + capfd.readouterr().err
    assert said.splitlines()[-1].startswith("error: the model repository")


@pytest.mark.slow
@pytest.mark.needs_triton
def test_nothing_outlives_a_killed_command(tmp_path: Path) -> None:
    write_model(tmp_path / "repository", "busy", execute=BUSY)
    write_model(tmp_path / "repository", "idle")
    with serve(tmp_path / "repository", tmp_path) as process, at_work(process, address_of(process)) as pids:
        prefix = next(p.region for p in find_model_processes(pids[0]).running).rsplit("-", 5)[0]
        process.kill()
    wait_until(lambda: all(is_gone(pid) for pid in pids))
    wait_until(lambda: not list(orphan_cleanup.SHM_FOLDER.glob(f"{prefix}*")))
    wait_until(lambda: not list(Path(tempfile.gettempdir()).glob(f"{prefix}*")))


@pytest.mark.slow
@pytest.mark.needs_triton
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_next_start_ends_what_a_killed_command_without_guard_leaves(tmp_path: Path, how: signal.Signals) -> None:
    write_model(tmp_path / "repository", "busy", execute=BUSY)
    with serve(tmp_path / "repository", tmp_path) as process, at_work(process, address_of(process)) as (*pids, guard):
        process.send_signal(signal.SIGSTOP)  # it must not replace the guard
        os.kill(guard, how)
        process.kill()
        if how is signal.SIGSTOP:
            assert not is_gone(pids[0]), "without a leftover this test shows nothing"
        orphan_cleanup.remove_leftovers()
        wait_until(lambda: all(is_gone(pid) for pid in [*pids, guard]))


@pytest.mark.slow
@pytest.mark.needs_triton
def test_triton_is_started_again_on_its_ports_when_its_guard_is_killed(tmp_path: Path) -> None:
    write_model(tmp_path / "repository", "busy", execute="time.sleep(60)")
    with serve(tmp_path / "repository", tmp_path) as process:
        address = address_of(process)
        with at_work(process, address) as before:
            os.kill(before[-1], signal.SIGKILL)
            wait_until(lambda: all(is_gone(pid) for pid in before))
        wait_until(lambda: answers(address))
        after = descendants(process)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0
    assert "tritonserver was killed (SIGKILL); its log is" in errors
    assert f"{tmp_path / 'triton.log'}; starting it again" in errors
    assert "restarted tritonserver in" in errors
    assert "Traceback" not in errors
    assert all(is_gone(pid) for pid in after)


def test_only_empty_environments_of_lost_makers_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphan_cleanup, "ENVIRONMENTS", tmp_path)
    for name in ("python_env_gone", "python_env_used", "python_env_new", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "python_env_used" / "0").mkdir()
    (tmp_path / "python_env_file").touch()
    (tmp_path / "libtriton_python.so").write_bytes(bytes(4096))
    for path in tmp_path.glob("python_env_*"):
        os.utime(path, (0, 0 if path.name != "python_env_new" else time.time() + 60))
    everything = {path.name for path in tmp_path.iterdir()}
    # This process stands for a server, which is older than one of the folders.
    monkeypatch.setattr(orphan_cleanup, "_BACKEND", str(tmp_path / "libtriton_python.so").encode())
    with (tmp_path / "libtriton_python.so").open("r+b") as file, mmap.mmap(file.fileno(), 0):
        orphan_cleanup.remove_environments()
    assert {path.name for path in tmp_path.iterdir()} == everything - {"python_env_gone"}
    orphan_cleanup.remove_environments()
    assert {path.name for path in tmp_path.iterdir()} == everything - {"python_env_gone", "python_env_new"}


def test_only_leftovers_of_dead_owners_are_removed() -> None:
    prefix = orphan_cleanup.new_prefix()
    dead_owner = f"onestream-{prefix.split('-')[1]}-{os.getpid()}-1-0-"  # this pid, but another start
    # Mine, an orphan, one of another container, and one of another program.
    names = (f"{prefix}region", f"{dead_owner}region", "onestream-1-1-1-0-region", "other-program-region")
    files = [orphan_cleanup.SHM_FOLDER / name for name in names]
    orphaned_folder = Path(tempfile.gettempdir()) / f"{dead_owner}folder"
    try:
        for file in files:
            file.touch()
        orphaned_folder.mkdir()
        orphan_cleanup.remove_leftovers()
        assert [file.exists() for file in files] == [True, False, True, True]
        assert not orphaned_folder.exists()
        orphan_cleanup.remove_regions(prefix)
        assert [file.exists() for file in files] == [False, False, True, True]
    finally:
        for file in files:
            file.unlink(missing_ok=True)
