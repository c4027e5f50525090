"""Model processes that are killed, crash or hang in loading, on a real Triton."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_models import (
    Load,
    infer,
    is_ready,
    kill_one,
    output,
    processes_of,
    running,
    wait_until,
    write_ensemble,
    write_model,
    write_stub,
)

from serving.leftovers import region_folder
from serving.processes import find_model_processes
from serving.server import Server
from serving.supervisor import RestartPolicy
from serving.triton import find_triton

SLOW = "time.sleep(0.02)"


@pytest.fixture(scope="module")
def events() -> list[str]:
    return []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, events: list[str]) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("supervised")
    write_model(repository, "alone", execute=SLOW)
    write_model(repository, "pair", execute=SLOW, instances=2)
    write_model(repository, "first", execute=SLOW)
    write_model(repository, "second", execute=SLOW)
    write_ensemble(repository, "chain", ["first", "second"])
    policy = RestartPolicy(drain_s=0.5)
    with running(repository, device="cpu", policy=policy, on_event=events.append) as supervised:
        yield supervised


def kill_under_load(server: Server, victim: str, asked: str) -> Load:
    """SIGKILL a process of one model while clients ask a model; check what every kill must show."""
    untouched = {p for p in find_model_processes(server.pid).running if p.model != victim}
    restarts = server.restarts.get(victim, 0)
    with Load(server, asked) as load:
        killed = kill_one(server, victim)
        killed_at = time.monotonic()
        wait_until(lambda: not is_ready(server, victim), within_s=1)
        assert not is_ready(server)
        assert not is_ready(server, asked)
        wait_until(lambda: is_ready(server) and infer(server, asked).status == 200, within_s=5)
        recovered_at = time.monotonic()
        time.sleep(0.3)
    assert load.late == [], "a request did not end within its deadline"
    failed = [a for a in load.answers if a.status != 200]
    assert failed, "the kill must have been noticed by some client"
    assert all(killed_at - 0.1 <= a.ended <= recovered_at + 2.5 for a in failed)
    assert all(a.status == 200 for a in load.answers if a.began > recovered_at)
    assert untouched <= set(find_model_processes(server.pid).running), "another model was restarted"
    assert killed not in processes_of(server, victim)
    assert server.restarts[victim] == restarts + 1
    return load


@pytest.mark.needs_triton
def test_a_killed_model_answers_again(server: Server, events: list[str]) -> None:
    kill_under_load(server, "alone", "alone")
    line = r"alone: model process \d+ was killed \(SIGKILL\); restarted in \d\.\d s"
    assert re.fullmatch(line, events[-1])


@pytest.mark.needs_triton
def test_an_ensemble_answers_again_when_a_step_was_killed(server: Server) -> None:
    kill_under_load(server, "second", "chain")
    assert output(infer(server, "chain", 5)) == 7


@pytest.mark.needs_triton
def test_all_instances_are_replaced_when_one_was_killed(server: Server) -> None:
    before = processes_of(server, "pair")
    kill_under_load(server, "pair", "pair")
    wait_until(lambda: len(processes_of(server, "pair")) == 2, within_s=5)
    assert not set(before) & set(processes_of(server, "pair")), "a process of the replaced model stayed"


@pytest.mark.needs_triton
def test_a_new_process_is_restarted_while_an_old_one_still_ends(tmp_path: Path) -> None:
    write_model(tmp_path, "pair", execute=SLOW, instances=2)
    events: list[str] = []
    policy = RestartPolicy(drain_s=60)
    with running(tmp_path, device="cpu", policy=policy, on_event=events.append) as server:
        with Load(server, "pair"):
            old = processes_of(server, "pair")
            old[0].kill()
            wait_until(lambda: len(events) == 1, within_s=5)
        survivor = old[1]
        assert survivor.ending() is None, "without a survivor this test shows nothing"
        next(p for p in processes_of(server, "pair") if p.instance == survivor.instance and p != survivor).kill()
        wait_until(lambda: len(events) == 2, within_s=5)
        assert infer(server, "pair").status == 200
        assert server.restarts == {"pair": 2}


@pytest.mark.needs_triton
def test_all_models_answer_again_when_all_processes_were_killed(server: Server) -> None:
    for process in find_model_processes(server.pid).running:
        process.kill()
    wait_until(lambda: not is_ready(server), within_s=1)
    wait_until(
        lambda: is_ready(server) and all(infer(server, m).status == 200 for m in ("alone", "pair", "chain")),
        within_s=10,
    )


@pytest.mark.needs_triton
def test_killed_processes_leave_no_shared_memory(server: Server) -> None:
    with Load(server, "alone"):
        killed = kill_one(server, "alone")
        wait_until(lambda: not is_ready(server), within_s=1)
        wait_until(lambda: is_ready(server), within_s=5)
    prefix = killed.region.rsplit("-", 5)[0]
    folder = region_folder(server.pid)

    def regions_match() -> bool:
        in_use = {process.region for process in find_model_processes(server.pid).running}
        return {path.name for path in folder.glob(f"{prefix}-*")} == in_use

    wait_until(regions_match, within_s=5)


@pytest.mark.needs_triton
def test_a_model_that_is_unloaded_on_purpose_stays_unloaded(server: Server) -> None:
    restarts = server.restarts
    server.control.unload("alone")
    wait_until(lambda: processes_of(server, "alone") == [], within_s=10)
    time.sleep(0.5)
    assert not is_ready(server, "alone")
    server.control.load("alone", timeout_s=10)
    assert infer(server, "alone").status == 200
    assert server.restarts == restarts


@pytest.mark.needs_triton
def test_a_model_that_keeps_crashing_is_given_up(tmp_path: Path) -> None:
    repository, poison = tmp_path / "repository", tmp_path / "poison"
    crash_later = "threading.Timer(0.7, os._exit, (3,)).start()"
    write_model(repository, "poisoned", initialize=f"if os.path.exists({str(poison)!r}): {crash_later}")
    write_model(repository, "healthy")
    events: list[str] = []
    policy = RestartPolicy(max_restarts=3, window_s=60, longest_delay_s=0.3)
    with running(repository, device="cpu", policy=policy, on_event=events.append) as server:
        poison.touch()
        kill_one(server, "poisoned")
        wait_until(lambda: "given up" in "".join(events), within_s=30)
        assert server.restarts == {"poisoned": 3}
        assert len(events) == 4
        assert "was killed (SIGKILL); restarted in" in events[0]
        assert "exited with code 3; restarted in" in events[1]
        assert "exited with code 3; given up after 3 restarts in 60 s" in events[3]
        for _ in range(25):  # unloading itself takes more than a second
            assert not is_ready(server)
            assert not is_ready(server, "poisoned")
            time.sleep(0.1)
        assert infer(server, "healthy").status == 200
        poison.unlink()
        server.control.load("poisoned", timeout_s=10)
        assert infer(server, "poisoned").status == 200
        assert is_ready(server)


@pytest.mark.needs_triton
def test_requests_that_crash_a_model_end_and_the_next_ones_are_answered(tmp_path: Path) -> None:
    write_model(tmp_path, "fragile", execute="if x.max() == 13: os._exit(3)")
    with running(tmp_path, device="cpu") as server:
        for _ in range(2):
            answer = infer(server, "fragile", 13, timeout_s=8)
            assert answer.status == 500
            assert "not healthy" in answer.body
            wait_until(lambda: is_ready(server), within_s=5)
            assert output(infer(server, "fragile", 1)) == 2
        assert server.restarts == {"fragile": 2}


@pytest.mark.needs_triton
def test_a_restart_that_fails_is_tried_again(tmp_path: Path) -> None:
    repository, obstacle = tmp_path / "repository", tmp_path / "obstacle"
    write_model(repository, "moody", initialize=f"assert not os.path.exists({str(obstacle)!r}), 'obstacle seen'")
    events: list[str] = []
    with running(repository, device="cpu", on_event=events.append) as server:
        obstacle.touch()
        kill_one(server, "moody")
        wait_until(lambda: len(events) >= 2, within_s=10)
        assert not is_ready(server)
        obstacle.unlink()
        wait_until(lambda: is_ready(server), within_s=10)
        assert infer(server, "moody").status == 200
        # The event follows the readiness.
        wait_until(lambda: "restarted in" in events[-1], within_s=10)
    assert re.fullmatch(
        r"moody: model process \d+ was killed \(SIGKILL\); restart 1 failed: AssertionError: obstacle seen", events[0]
    )


@pytest.mark.needs_triton
def test_triton_is_replaced_when_it_waits_for_a_dead_process(tmp_path: Path) -> None:
    stub = find_triton().stub
    assert stub is not None, "this test needs the embedded Triton"
    repository, obstacle = tmp_path / "repository", tmp_path / "obstacle"
    folder = write_model(repository, "fragile")
    # Dies before its first message, once.
    write_stub(folder, f'[ -e {obstacle} ] && rm {obstacle} && kill -9 $$\nexec {stub} "$@"')
    events: list[str] = []
    with running(repository, device="cpu", on_event=events.append) as server:
        url, pid = server.http_url, server.pid
        obstacle.touch()
        kill_one(server, "fragile")
        wait_until(lambda: any("restarted tritonserver" in line for line in events), within_s=20)
        assert server.http_url == url
        assert server.pid != pid
        assert infer(server, "fragile").status == 200
        kill_one(server, "fragile")
        wait_until(lambda: "restarted in" in events[-1], within_s=10)
        assert infer(server, "fragile").status == 200


def test_delays_between_restarts_grow_to_a_limit() -> None:
    policy = RestartPolicy(longest_delay_s=2.0)
    assert [policy.delay_s(recent) for recent in range(8)] == [0, 0, 0.25, 0.5, 1, 2, 2, 2]


@pytest.mark.needs_triton
def test_no_thread_is_left_by_a_restart(server: Server) -> None:
    kill_one(server, "alone")
    wait_until(lambda: not is_ready(server), within_s=1)
    wait_until(lambda: is_ready(server), within_s=5)
    wait_until(lambda: not any(t.name.startswith("restart-") for t in threading.enumerate()), within_s=5)
