"""Model processes that are killed, crash or hang in loading, on a real Triton."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import wait_until
from small_models import (
    Load,
    infer,
    is_ready,
    kill_one,
    output,
    processes_of,
    running,
    write_ensemble,
    write_model,
    write_stub,
)
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.serving.server import server as server_module
from onestream.serving.server.errors import ServerError
from onestream.serving.server.server import Server
from onestream.serving.server.supervisor import RestartPolicy
from onestream.serving.server.triton.installation import find_triton
from onestream.serving.server.triton.model_processes import find_model_processes
from onestream.serving.server.triton.orphan_cleanup import region_folder

pytestmark = [pytest.mark.slow, pytest.mark.needs_triton]

ROOT = Path(__file__).parents[3]
SLOW = "time.sleep(0.02)"


@pytest.fixture(scope="module")
def everything() -> list[str]:
    """The events of both servers."""
    return []


@pytest.fixture
def events(everything: list[str]) -> list[str]:
    """The events since a test began."""
    everything.clear()
    return everything


@pytest.fixture(scope="module")
def obstacles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("obstacles")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, everything: list[str], obstacles: Path) -> Iterator[Server]:
    """Models that are killed, crash or hang, each in its own way."""
    repository = tmp_path_factory.mktemp("supervised")
    write_model(repository, "alone", execute=SLOW)
    write_model(repository, "pair", execute=SLOW, instances=2)
    write_model(repository, "first", execute=SLOW)
    write_model(repository, "second", execute=SLOW)
    write_ensemble(repository, "chain", ["first", "second"])
    write_model(repository, "fragile", execute="if x.max() == 13: os._exit(3)")
    obstacle = str(obstacles / "moody")
    write_model(repository, "moody", initialize=f"assert not os.path.exists({obstacle!r}), 'obstacle seen'")
    # One loop that keeps Python's lock, and one in native code.
    spin = "end = time.monotonic() + 3\n            while time.monotonic() < end: pass"
    write_model(repository, "spins", execute=spin)
    write_model(repository, "holds", execute="__import__('ctypes').PyDLL(None).sleep(3)")
    # Native code that keeps Python's lock, so that no thread of Python could end it.
    shorten = (
        f"import sys; global deadline; sys.path[:0] = [{str(ROOT)!r}]; from onestream.serving.models import deadline"
    )
    within = "held = deadline.batch_deadline(); held.__enter__()"
    hang = f"if x.max() == 13: {within}; __import__('ctypes').PyDLL(None).sleep(600)"
    write_model(repository, "hangs", initialize=f"{shorten}; deadline.BATCH_DEADLINE_S = 1.0", execute=hang)
    stub, obstacle = find_triton().stub, str(obstacles / "speechless")
    assert stub is not None, "these tests need the embedded Triton"
    # Dies before its first message, once.
    script = f'[ -e {obstacle} ] && rm {obstacle} && kill -9 $$\nexec {stub} "$@"'
    write_stub(write_model(repository, "speechless"), script)
    policy = RestartPolicy(drain_s=0.5)
    with running(repository, device="cpu", policy=policy, on_event=everything.append) as supervised:
        yield supervised


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, everything: list[str], obstacles: Path) -> Iterator[Server]:
    """A server that gives up a model at its third death, Triton at its second; old processes may take long to end."""
    repository = tmp_path_factory.mktemp("strict")
    crash_later = "threading.Timer(0.7, os._exit, (3,)).start()"
    poison = str(obstacles / "poison")
    write_model(repository, "poisoned", initialize=f"if os.path.exists({poison!r}): {crash_later}")
    write_model(repository, "pair", execute=SLOW, instances=2)
    for name in ("healthy", "moved", "lost", "broken"):
        write_model(repository, name)
    policy = RestartPolicy(max_restarts=2, window_s=600, longest_delay_s=0.3, drain_s=60)
    policies = {"policy": policy, "triton_policy": RestartPolicy(max_restarts=1, window_s=600)}
    with running(repository, device="cpu", on_event=everything.append, **policies) as supervised:
        yield supervised


def kill_under_load(server: Server, victim: str, asked: str) -> Load:
    """SIGKILL a process of one model while clients ask a model; check what every kill must show."""
    untouched = {p for p in find_model_processes(server.pid).running if p.model != victim}
    restarts = server.restarts.get(victim, 0)
    with Load(server, asked) as load:
        killed_at = time.monotonic()
        killed = kill_one(server, victim)
        wait_until(lambda: not is_ready(server, victim))
        assert not is_ready(server)
        assert not is_ready(server, asked)
        wait_until(lambda: is_ready(server) and infer(server, asked).status == 200)
        recovered_at = time.monotonic()
        time.sleep(0.3)
    assert load.late == [], "a request did not end within its deadline"
    failed = [a for a in load.answers if a.status != 200]
    assert failed, "the kill must have been noticed by some client"
    assert all(killed_at < a.ended and a.began < recovered_at for a in failed)
    assert untouched <= set(find_model_processes(server.pid).running), "another model was restarted"
    assert killed not in processes_of(server, victim)
    assert server.restarts[victim] == restarts + 1
    return load


def test_a_killed_model_answers_again_and_leaves_nothing(server: Server, events: list[str]) -> None:
    kill_under_load(server, "alone", "alone")
    line = r"alone: model process \d+ was killed \(SIGKILL\); restarted in \d+\.\d s"
    assert re.fullmatch(line, events[-1])
    prefix = processes_of(server, "alone")[0].region.rsplit("-", 5)[0]

    def regions_match() -> bool:
        in_use = {process.region for process in find_model_processes(server.pid).running}
        return {path.name for path in region_folder(server.pid).glob(f"{prefix}-*")} == in_use

    wait_until(regions_match)
    wait_until(lambda: not any(t.name.startswith("restart-") for t in threading.enumerate()))


def test_an_ensemble_answers_again_when_a_step_was_killed(server: Server) -> None:
    kill_under_load(server, "second", "chain")
    assert output(infer(server, "chain", 5)) == 7


def test_all_instances_are_replaced_when_one_was_killed(server: Server) -> None:
    before = processes_of(server, "pair")
    kill_under_load(server, "pair", "pair")
    wait_until(lambda: len(processes_of(server, "pair")) == 2)
    assert not set(before) & set(processes_of(server, "pair")), "a process of the replaced model stayed"


def test_all_models_answer_again_when_all_processes_were_killed(server: Server) -> None:
    for process in find_model_processes(server.pid).running:
        process.kill()
    wait_until(lambda: not is_ready(server))
    wait_until(lambda: is_ready(server) and all(infer(server, m).status == 200 for m in ("alone", "pair", "chain")))


def test_a_model_that_is_unloaded_on_purpose_stays_unloaded(server: Server) -> None:
    restarts = server.restarts
    server.control.unload("alone")
    wait_until(lambda: processes_of(server, "alone") == [])
    time.sleep(0.5)
    assert not is_ready(server, "alone")
    server.control.load("alone", timeout_s=10)
    assert infer(server, "alone").status == 200
    assert server.restarts == restarts


def test_a_stopped_process_is_replaced_before_it_goes_on(server: Server, events: list[str]) -> None:
    triton = server.pid
    with Load(server, "alone") as load:
        stopped = processes_of(server, "alone")[0]
        os.kill(stopped.pid, signal.SIGSTOP)
        wait_until(lambda: stopped.ending() is not None)
        wait_until(lambda: any("was stopped" in line for line in events))
        with contextlib.suppress(ProcessLookupError):
            os.kill(stopped.pid, signal.SIGCONT)
        answered = len(load.answers)
        wait_until(lambda: any(a.status == 200 for a in load.answers[answered:]))
    line = r"alone: model process \d+ was stopped by a signal and was killed; restarted in \d+\.\d s"
    assert re.fullmatch(line, events[-1])
    assert server.pid == triton
    assert load.late == []
    assert {a.body for a in load.answers if a.status != 200} <= {
        '{"error":"Stub process \'alone_0_0\' is not healthy."}',
        *(a.body for a in load.answers if "is not ready" in a.body or "no available versions" in a.body),
    }


def test_a_model_that_keeps_crashing_is_given_up(strict: Server, events: list[str], obstacles: Path) -> None:
    (obstacles / "poison").touch()
    kill_one(strict, "poisoned")
    wait_until(lambda: "given up" in "".join(events))
    assert strict.restarts == {"poisoned": 2}
    assert len(events) == 3
    assert "was killed (SIGKILL); restarted in" in events[0]
    assert "exited with code 3; restarted in" in events[1]
    assert "exited with code 3; given up after 2 restarts in 600 s" in events[2]
    for _ in range(25):  # unloading itself takes more than a second
        assert not is_ready(strict)
        assert not is_ready(strict, "poisoned")
        time.sleep(0.1)
    assert infer(strict, "healthy").status == 200
    (obstacles / "poison").unlink()
    strict.control.load("poisoned", timeout_s=10)
    assert infer(strict, "poisoned").status == 200
    assert is_ready(strict)


def test_a_model_without_files_keeps_the_server_unready_until_they_are_back(strict: Server, events: list[str]) -> None:
    folder, elsewhere = strict.repository / "moved", strict.repository.with_name("moved")
    folder.rename(elsewhere)
    kill_one(strict, "moved")
    wait_until(lambda: "given up" in "".join(events))
    for _ in range(25):
        assert not is_ready(strict)
        assert infer(strict, "healthy").status == 200
        time.sleep(0.1)
    elsewhere.rename(folder)
    wait_until(lambda: is_ready(strict) and infer(strict, "moved").status == 200)
    wait_until(lambda: "restarted in" in events[-1])
    assert "moved: its files changed; loading it again" in events
    # The counters began anew: one more death is no reason to give up.
    kill_one(strict, "moved")
    wait_until(lambda: "SIGKILL); restarted in" in events[-1])


def test_a_model_that_was_given_up_is_tried_again_when_it_was_mended(strict: Server, events: list[str]) -> None:
    source = strict.repository / "broken" / "1" / "model.py"
    right = source.read_text()
    source.write_text("raise ValueError('half a file')\n")
    kill_one(strict, "broken")
    wait_until(lambda: "given up" in "".join(events))
    assert not is_ready(strict)
    source.write_text(right)
    wait_until(lambda: is_ready(strict) and infer(strict, "broken").status == 200)


def test_requests_that_crash_a_model_end_and_the_next_ones_are_answered(server: Server) -> None:
    restarts = server.restarts.get("fragile", 0)
    for number in (1, 2):
        answer = infer(server, "fragile", 13, timeout_s=8)
        assert answer.status == 500
        assert "not healthy" in answer.body
        wait_until(lambda: is_ready(server))
        assert output(infer(server, "fragile", 1)) == 2
        assert server.restarts["fragile"] == restarts + number


def test_a_process_that_dies_right_after_its_load_is_restarted(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    restarts = server.restarts.get("fragile", 0)
    with monkeypatch.context() as seldom:
        # Between two looks at the processes the model is loaded and dies again.
        seldom.setattr(server_module, "_POLL_S", 2.0)
        assert infer(server, "fragile", 13, timeout_s=8).status == 500
        wait_until(lambda: infer(server, "fragile", 1).status == 200)
        assert infer(server, "fragile", 13, timeout_s=8).status == 500
    wait_until(lambda: is_ready(server) and infer(server, "fragile", 1).status == 200)
    assert server.restarts["fragile"] == restarts + 2


def test_a_restart_that_fails_is_tried_again(server: Server, events: list[str], obstacles: Path) -> None:
    (obstacles / "moody").touch()
    kill_one(server, "moody")
    wait_until(lambda: len(events) >= 2)
    assert not is_ready(server)
    (obstacles / "moody").unlink()
    wait_until(lambda: is_ready(server))
    assert infer(server, "moody").status == 200
    # The event follows the readiness.
    wait_until(lambda: "restarted in" in events[-1])
    line = r"moody: model process \d+ was killed \(SIGKILL\); restart \d+ failed: AssertionError: obstacle seen"
    assert re.fullmatch(line, events[0])


def test_a_process_that_is_slow_at_its_work_is_left_alone(server: Server) -> None:
    restarts = server.restarts
    assert output(infer(server, "spins", timeout_s=30)) == 2
    assert output(infer(server, "holds", timeout_s=30)) == 2
    assert server.restarts == restarts


def test_a_batch_over_its_deadline_ends_its_process(server: Server, events: list[str]) -> None:
    assert infer(server, "hangs", 13, timeout_s=60).status == 500
    wait_until(lambda: any("restarted in" in line for line in events))
    assert "was killed (SIGALRM): its batch took longer than a batch may; restarted in" in events[-1]
    assert output(infer(server, "hangs", 1)) == 2


def test_triton_is_replaced_if_it_waits_for_a_dead_process(server: Server, events: list[str], obstacles: Path) -> None:
    url, pid = server.http_url, server.pid
    (obstacles / "speechless").touch()
    kill_one(server, "speechless")
    wait_until(lambda: any("restarted tritonserver" in line for line in events))
    assert server.http_url == url
    assert server.pid != pid
    assert infer(server, "speechless").status == 200
    kill_one(server, "speechless")
    wait_until(lambda: "restarted in" in events[-1])
    assert infer(server, "speechless").status == 200


def test_a_new_process_is_restarted_while_an_old_one_still_ends(strict: Server, events: list[str]) -> None:
    with Load(strict, "pair"):
        old = processes_of(strict, "pair")
        old[0].kill()
        wait_until(lambda: len(events) == 1)
    survivor = old[1]
    assert survivor.ending() is None, "without a survivor this test shows nothing"
    next(p for p in processes_of(strict, "pair") if p.instance == survivor.instance and p != survivor).kill()
    wait_until(lambda: len(events) == 2)
    assert infer(strict, "pair").status == 200
    assert strict.restarts["pair"] == 2


# The last two of this server: it stays unready, and ends.
def test_a_stopped_triton_is_replaced_by_one_that_serves_the_same(strict: Server, events: list[str]) -> None:
    """What commands loaded is loaded, and what they unloaded is not; it is unready without what was given up."""
    write_model(strict.repository, "late")
    for command in (["load", "late"], ["unload", "moved"]):
        done = CliRunner().invoke(app, ["models", *command, f"--repository={strict.repository}"])
        assert done.exit_code == 0, done.output
    (strict.repository / "lost").rename(strict.repository.with_name("lost"))
    kill_one(strict, "lost")
    wait_until(lambda: "given up" in "".join(events))
    url, stopped = strict.http_url, strict.pid
    os.kill(stopped, signal.SIGSTOP)
    wait_until(lambda: any("restarted tritonserver" in line for line in events))
    assert any("tritonserver was stopped by a signal; its log is" in line for line in events)
    assert strict.http_url == url
    assert strict.pid != stopped
    assert infer(strict, "healthy").status == 200
    assert output(infer(strict, "late", 1)) == 2
    assert not is_ready(strict)
    wait_until(lambda: not processes_of(strict, "moved"))


def test_a_triton_that_dies_too_often_is_given_up(strict: Server) -> None:
    os.kill(strict.pid, signal.SIGABRT)
    with pytest.raises(ServerError, match=r"was killed \(SIGABRT\).*given up after 1 restarts in 600 s"):
        strict.wait(timeout_s=60)
