"""Restarts model processes that die.

Triton's Python backend neither restarts a model process that died nor reports the model as not ready. The supervisor
watches the processes; when one dies it unloads the model, which makes it and the server not ready, and loads it again.
Ensembles that use the model come back with it; other models are not touched.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from serving.control import ControlError
from serving.processes import ModelProcess
from serving.shared_memory import remove_region
from serving.triton_process import TritonProcess

_RESCAN_S = 1.0
_PAUSE_AFTER_FAILURE_S = 0.2
# A process that dies before its first message leaves Triton waiting for ever; any later death it reports within 2 s.
_UNNOTICED_DEATH_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How persistently a model is restarted.

    Attributes:
        max_restarts: restarts of one model within ``window_s``, after which it is given up, >= 1.
        window_s: seconds after which a restart no longer counts.
        longest_delay_s: the delay before a restart doubles up to this many seconds; the first restarts have none.
        load_timeout_s: seconds that one load may take.
        drain_s: seconds for which the surviving processes of the replaced model may finish their requests.
    """

    max_restarts: int = 10
    window_s: float = 60.0
    longest_delay_s: float = 2.0
    load_timeout_s: float = 120.0
    drain_s: float = 10.0

    def delay_s(self, recent_restarts: int) -> float:
        """Seconds to wait before the next restart: 0, 0, then 0.25 doubling."""
        if recent_restarts < 2:
            return 0.0
        return min(self.longest_delay_s, 0.25 * 2.0 ** (recent_restarts - 2))


class RestartHistory:
    """When each model was restarted; outlives a supervisor when Triton itself is restarted. Thread-safe."""

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = defaultdict(list)
        self._lock = threading.Lock()

    def add(self, model: str) -> None:
        """Note a restart that begins now."""
        with self._lock:
            self._times[model].append(time.monotonic())

    def recent(self, model: str, window_s: float) -> int:
        """Count the restarts of a model in the last ``window_s`` seconds."""
        earliest = time.monotonic() - window_s
        with self._lock:
            return sum(moment >= earliest for moment in self._times[model])

    def totals(self) -> dict[str, int]:
        """Count all restarts, by model; models never restarted are absent."""
        with self._lock:
            return {model: len(times) for model, times in self._times.items() if times}


class TritonStuck(Exception):
    """Triton waits for ever for a model process that is dead; only a restart of Triton helps.

    Attributes:
        model: the model that it was loading.
    """

    def __init__(self, model: str) -> None:
        super().__init__(f"Triton is stuck loading model '{model}'")
        self.model = model


@dataclass(slots=True)
class _Recovery:
    """A model that is being restarted."""

    model: str
    reason: str
    replaced: frozenset[int]
    already_dead: frozenset[int]
    began: float = field(default_factory=time.monotonic)
    loading_since: float | None = None
    unnoticed_since: float | None = None
    lost: list[tuple[ModelProcess, str]] = field(default_factory=list)
    thread: threading.Thread | None = None


class Supervisor:
    """Watches the model processes of one tritonserver. All methods are for one thread, which calls ``poll`` often.

    Args:
        triton: the tritonserver, its processes and the control of its models.
        policy: how persistently a model is restarted.
        history: counts restarts.
        announce: receives one line for every event; called from several threads.
    """

    def __init__(
        self,
        triton: TritonProcess,
        *,
        policy: RestartPolicy,
        history: RestartHistory,
        announce: Callable[[str], None],
    ) -> None:
        self._triton = triton
        self._control = triton.control
        self._policy = policy
        self._history = history
        self._announce = announce
        # A process that died since Triton became ready is among those that were seen during the start.
        self._watched = triton.known_processes()
        self._model_of = {pid: process.model for pid, process in self._watched.items()}
        self._dead_pids: frozenset[int] = frozenset()
        self._retired: dict[int, float] = {}
        self._recoveries: dict[str, _Recovery] = {}
        self._next_scan = 0.0
        self._closed = threading.Event()

    def poll(self) -> None:
        """Look at the processes, and begin or complete restarts. Takes milliseconds; restarts run in threads.

        Raises:
            TritonStuck: a restart cannot succeed, because Triton waits for a dead process.
        """
        if self._recoveries or time.monotonic() >= self._next_scan:
            self._scan()
        self._notice_deaths()
        self._kill_retired()
        self._check_stuck()
        self._complete_recoveries()

    def close(self) -> None:
        """Begin no more restarts; those under way end by themselves when Triton ends."""
        self._closed.set()

    def _scan(self) -> None:
        found = self._triton.model_processes()
        for process in found.running:
            self._watched.setdefault(process.pid, process)
            self._model_of[process.pid] = process.model
        self._dead_pids = found.dead_pids
        self._next_scan = time.monotonic() + _RESCAN_S

    def _notice_deaths(self) -> None:
        ended = [(process, how) for process in self._watched.values() if (how := process.ending()) is not None]
        if ended:
            for process, _ in ended:
                del self._watched[process.pid]
                remove_region(process.region, prefix=self._triton.region_prefix)
            self._scan()
        for process, how in ended:
            if self._retired.pop(process.pid, None) is not None:
                continue
            if process.model in self._recoveries:
                self._recoveries[process.model].lost.append((process, how))
            elif self._is_needed(process):
                self._recover(process, how)

    def _is_needed(self, process: ModelProcess) -> bool:
        """Tell a process that died from one that Triton ended: it was replaced, or its model was unloaded."""
        for other in self._watched.values():
            same_instance = other.model == process.model and other.instance == process.instance
            if same_instance and other.pid not in self._retired:
                return False
        try:
            state = self._control.model_states().get(process.model)
        except ControlError:
            return True
        return state is not None and state.state == "READY"

    def _recover(self, process: ModelProcess, how: str) -> None:
        recovery = _Recovery(
            model=process.model,
            reason=f"model process {process.pid} {how}",
            replaced=frozenset(p.pid for p in self._watched.values() if p.model == process.model),
            already_dead=self._dead_pids,
        )
        self._recoveries[process.model] = recovery
        recovery.thread = threading.Thread(
            target=self._restart, args=(recovery,), name=f"restart-{process.model}", daemon=True
        )
        recovery.thread.start()

    def _restart(self, recovery: _Recovery) -> None:
        """Restart a model until it is loaded or given up. Runs in the recovery's thread."""
        model, policy = recovery.model, self._policy
        while not self._closed.is_set():
            recent = self._history.recent(model, policy.window_s)
            try:
                if recent >= policy.max_restarts:
                    self._control.keep_unready(model)
                    self._announce(
                        f"{model}: {recovery.reason}; given up after {recent} restarts in {policy.window_s:g} s. "
                        "The server stays not ready until the model is loaded again or the server is restarted"
                    )
                    return
                delay_s = policy.delay_s(recent)
                if delay_s > 0:
                    self._control.keep_unready(model)
                    self._closed.wait(delay_s)
                self._history.add(model)
                recovery.loading_since = time.monotonic()
                self._control.reload(model, timeout_s=policy.load_timeout_s)
            except ControlError as error:
                if not self._closed.is_set():
                    self._announce(f"{model}: {recovery.reason}; restart {recent + 1} failed: {error}")
                self._closed.wait(_PAUSE_AFTER_FAILURE_S)
                continue
            finally:
                recovery.loading_since = None
            took_s = time.monotonic() - recovery.began
            self._announce(f"{model}: {recovery.reason}; restarted in {took_s:.1f} s")
            return

    def _complete_recoveries(self) -> None:
        """Watch the new processes, and retire the ones they replace."""
        for recovery in list(self._recoveries.values()):
            if recovery.thread is None or recovery.thread.is_alive():
                continue
            del self._recoveries[recovery.model]
            deadline = time.monotonic() + self._policy.drain_s
            # Triton leaks a reference for every request that a dead process held, so the replaced model, with
            # its surviving processes, would stay for ever.
            self._retired.update({pid: deadline for pid in recovery.replaced if pid in self._watched})
            self._scan()
            for process, how in recovery.lost:
                if process.pid not in recovery.replaced and self._is_needed(process):
                    self._recover(process, how)
                    break

    def _kill_retired(self) -> None:
        for pid, deadline in self._retired.items():
            if time.monotonic() >= deadline and pid in self._watched:
                self._watched[pid].kill()

    def _check_stuck(self) -> None:
        for recovery in self._recoveries.values():
            known_before = recovery.already_dead | recovery.replaced
            fresh_dead = {
                pid
                for pid in self._dead_pids - known_before
                if self._model_of.get(pid, recovery.model) == recovery.model
            }
            if recovery.loading_since is None or not fresh_dead:
                recovery.unnoticed_since = None
            elif recovery.unnoticed_since is None:
                recovery.unnoticed_since = time.monotonic()
            elif time.monotonic() - recovery.unnoticed_since > _UNNOTICED_DEATH_S:
                raise TritonStuck(recovery.model)
