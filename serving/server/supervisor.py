"""Restarts model processes that die, and kills those that hang.

Triton's Python backend neither restarts a model process that died nor reports the model as not ready, and one that
goes on after it was stopped ends tritonserver. The supervisor watches the processes; it kills one that does not run.
When one dies it unloads the model, which makes it and the server not ready, and loads it again. Ensembles that use the
model come back with it; other models are not touched.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from onestream.serving.child_process import describe_exit
from onestream.serving.server.triton.control import ControlError
from onestream.serving.server.triton.hangs import HangWatch
from onestream.serving.server.triton.model_processes import ModelProcess
from onestream.serving.server.triton.orphan_cleanup import region_folder, remove_region
from onestream.serving.server.triton.process import TritonProcess

_RESCAN_S = 1.0
_SETTLE_S = 0.05
_PAUSE_AFTER_FAILURE_S = 0.2
# A process that dies before its first message leaves Triton waiting for ever; any later death it reports within 2 s.
_UNNOTICED_DEATH_S = 3.0
# How the kernel ends a process whose batch takes longer than its deadline.
_OVERDUE = describe_exit(-signal.SIGALRM)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """The limits and pauses of restarting a model.

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
    """The times at which each model was restarted; outlives a supervisor when Triton itself is restarted. Thread-safe.

    Attributes:
        given_up: models that are restarted no more, and the files with which they were tried last
            (``StagedRepository.files_of``).
    """

    def __init__(self) -> None:
        self.given_up: dict[str, frozenset[tuple[str, int, int, int]]] = {}
        self._times: dict[str, list[float]] = defaultdict(list)
        self._forgiven: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, model: str) -> None:
        """Note a restart that begins now."""
        with self._lock:
            self._times[model].append(time.monotonic())

    def recent(self, model: str, window_s: float) -> int:
        """Count the restarts of a model in the last ``window_s`` seconds."""
        earliest = time.monotonic() - window_s
        with self._lock:
            earliest = max(earliest, self._forgiven.get(model, earliest))
            return sum(moment >= earliest for moment in self._times[model])

    def forgive(self, model: str) -> None:
        """Let restarts so far not count any more, in a model that was given up."""
        with self._lock:
            self._forgiven[model] = time.monotonic()
        self.given_up.pop(model, None)

    def totals(self) -> dict[str, int]:
        """Count all restarts, by model; models never restarted are absent."""
        with self._lock:
            return {model: len(times) for model, times in self._times.items() if times}


class TritonStuck(Exception):
    """Triton waits for ever for a model process that is dead; only a restart of Triton helps.

    Attributes:
        model: the model that it was loading, or several, separated by commas.
    """

    def __init__(self, model: str) -> None:
        super().__init__(f"{model}: its process died before it began to load, and tritonserver waits for it for ever")
        self.model = model


@dataclass(slots=True)
class _Recovery:
    """Models that are restarted together: one, or several that died at once and share an ensemble.

    Triton loads the models of an ensemble side by side only when the ensemble is loaded; loaded one by one, they wait
    for each other.
    """

    reasons: dict[str, str]
    ensembles: list[str]
    replaced: frozenset[int]
    already_dead: frozenset[int]
    began: float = field(default_factory=time.monotonic)
    is_loading: bool = False
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
        died: models whose processes died during Triton's start, with the reason of each; they are restarted.
    """

    def __init__(
        self,
        triton: TritonProcess,
        *,
        policy: RestartPolicy,
        history: RestartHistory,
        announce: Callable[[str], None],
        died: Mapping[str, str] = MappingProxyType({}),
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
        self._recoveries: list[_Recovery] = []
        self._next_scan = 0.0
        self._hangs = HangWatch()
        self._killed_because: dict[int, str] = {}
        self._closed = threading.Event()
        self._recover(dict(died))

    def poll(self) -> None:
        """Look at the processes, and begin or complete restarts. Takes milliseconds; restarts run in threads.

        Raises:
            TritonStuck: a restart cannot succeed, because Triton waits for a dead process.
        """
        if self._recoveries or time.monotonic() >= self._next_scan:
            self._scan()
            self._retry_changed()
        self._kill_hung()
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

    def _kill_hung(self) -> None:
        """Kill what does not run, before it goes on: Triton may have taken its memory back."""
        for process in self._watched.values():
            why = self._hangs.why_hung(process)
            if why is not None:
                self._killed_because[process.pid] = f"{why} and was killed"
                process.kill()

    def _retry_changed(self) -> None:
        """Try models again that were given up, when their files have changed."""
        for model, tried in list(self._history.given_up.items()):
            files = self._triton.view.files_of(model)
            if files in (tried, frozenset()) or self._recovery_of(model) is not None:
                continue
            self._history.forgive(model)
            with contextlib.suppress(ControlError):
                if self._control.model_states()[model].state == "READY":
                    continue
            self._announce(f"{model}: its files changed; loading it again")
            self._recover({model: "its files changed"})

    def _notice_deaths(self) -> None:
        if all(process.ending() is None for process in self._watched.values()):
            return
        # Processes killed together do not end at the same moment, and those of one ensemble are restarted together.
        time.sleep(_SETTLE_S)
        if self._triton.has_ended:
            return  # They ended with it.
        ended = [(process, how) for process in self._watched.values() if (how := process.ending()) is not None]
        for process, _ in ended:
            del self._watched[process.pid]
            remove_region(process.region, prefix=self._triton.region_prefix, folder=region_folder(self._triton.pid))
        self._scan()
        deaths: dict[str, str] = {}
        for process, exit_text in ended:
            how = self._how_it_ended(process, exit_text)
            recovery = self._recovery_of(process.model)
            if self._retired.pop(process.pid, None) is not None:
                continue
            if recovery is not None:
                recovery.lost.append((process, how))
            elif self._is_needed(process):
                deaths[process.model] = f"model process {process.pid} {how}"
        self._recover(deaths)

    def _how_it_ended(self, process: ModelProcess, exit_text: str) -> str:
        if exit_text == _OVERDUE:
            return f"{exit_text}: its batch took longer than a batch may"
        return self._killed_because.pop(process.pid, exit_text)

    def _recovery_of(self, model: str) -> _Recovery | None:
        return next((recovery for recovery in self._recoveries if model in recovery.reasons), None)

    def _is_needed(self, process: ModelProcess) -> bool:
        """Tell a process that died from one that Triton ended: it was replaced, or its model is none any more."""
        for other in self._watched.values():
            same_instance = other.model == process.model and other.instance == process.instance
            if same_instance and other.pid not in self._retired:
                return False
        try:
            state = self._control.model_states().get(process.model)
        except ControlError:
            return True
        if state is None or state.state != "READY":
            return False
        try:
            return not self._control.is_ensemble(process.model)
        except ControlError:
            return True

    def _recover(self, deaths: dict[str, str]) -> None:
        """Begin to restart models, each with the others that share an ensemble with it. ``deaths``: why, by model."""
        steps_of: dict[str, frozenset[str]] = {}
        if len(deaths) > 1:
            with contextlib.suppress(ControlError):
                steps_of = self._control.ensembles()
        remaining = dict(deaths)
        while remaining:
            group = {next(iter(remaining))}
            ensembles: set[str] = set()
            while grown := {name for name, steps in steps_of.items() if steps & group} - ensembles:
                ensembles |= grown
                group |= {model for name in grown for model in steps_of[name] & remaining.keys()}
            recovery = _Recovery(
                reasons={model: remaining.pop(model) for model in sorted(group)},
                ensembles=sorted(ensembles) if len(group) > 1 else [],
                replaced=frozenset(p.pid for p in self._watched.values() if p.model in group),
                already_dead=self._dead_pids,
            )
            recovery.thread = threading.Thread(
                target=self._restart, args=(recovery,), name="restart-" + "-".join(recovery.reasons), daemon=True
            )
            self._recoveries.append(recovery)
            recovery.thread.start()

    def _restart(self, recovery: _Recovery) -> None:
        """Restart models until they are loaded or given up. Runs in the recovery's thread."""
        policy = self._policy
        tried: dict[str, frozenset[tuple[str, int, int, int]]] = {}
        while not self._closed.is_set():
            # Looked at before they are loaded, so that no change is missed.
            files = {model: self._triton.view.files_of(model) for model in recovery.reasons}
            recent = max(self._history.recent(model, policy.window_s) for model in recovery.reasons)
            try:
                if recent >= policy.max_restarts:
                    self._give_up(recovery, recent, tried or files)
                    return
                tried = files
                self._reload(recovery, delay_s=policy.delay_s(recent))
            except ControlError as error:
                if not self._closed.is_set():
                    self._announce_each(recovery, f"restart {recent + 1} failed: {error}")
                self._closed.wait(_PAUSE_AFTER_FAILURE_S)
            else:
                self._announce_each(recovery, f"restarted in {time.monotonic() - recovery.began:.1f} s")
                return

    def _reload(self, recovery: _Recovery, *, delay_s: float) -> None:
        """Unload the models and load them again, after a delay during which the server is kept unready."""
        if delay_s > 0:
            for model in recovery.reasons:
                self._control.keep_unready(model)
            self._closed.wait(delay_s)
        for model in recovery.reasons:
            self._history.add(model)
        recovery.is_loading = True
        try:
            for model in recovery.reasons:
                self._control.unload(model, timeout_s=self._policy.load_timeout_s)
            for model in (*recovery.ensembles, *recovery.reasons):
                self._control.load(model, timeout_s=self._policy.load_timeout_s)
        finally:
            recovery.is_loading = False

    def _give_up(
        self, recovery: _Recovery, restarts: int, files: dict[str, frozenset[tuple[str, int, int, int]]]
    ) -> None:
        for model in recovery.reasons:
            self._control.keep_unready(model)
        self._history.given_up.update(files)
        self._announce_each(
            recovery,
            f"given up after {restarts} restarts in {self._policy.window_s:g} s. "
            "The server stays not ready; find the cause in its log, and change the model's files or restart the server",
        )

    def _announce_each(self, recovery: _Recovery, outcome: str) -> None:
        for model, reason in recovery.reasons.items():
            self._announce(f"{model}: {reason}; {outcome}")

    def _complete_recoveries(self) -> None:
        """Watch the new processes, and retire the ones they replace."""
        for recovery in [r for r in self._recoveries if r.thread is not None and not r.thread.is_alive()]:
            self._recoveries.remove(recovery)
            deadline = time.monotonic() + self._policy.drain_s
            # Triton leaks a reference for every request that a dead process held, so the replaced model, with
            # its surviving processes, would stay for ever.
            self._retired.update({pid: deadline for pid in recovery.replaced if pid in self._watched})
            self._scan()
            self._recover(
                {
                    **self._died_unseen(recovery),
                    **{
                        process.model: f"model process {process.pid} {how}"
                        for process, how in recovery.lost
                        if process.pid not in recovery.replaced and self._is_needed(process)
                    },
                }
            )

    def _died_unseen(self, recovery: _Recovery) -> dict[str, str]:
        """Models whose new process died between two scans, as the first request of a retrying client can cause."""
        pids = self._fresh_dead(recovery) - self._model_of.keys()
        if not pids:
            return {}
        watched = {process.model for process in self._watched.values() if process.pid not in recovery.replaced}
        reason = f"model process {', '.join(map(str, sorted(pids)))} ended as soon as it was loaded"
        return dict.fromkeys(recovery.reasons.keys() - watched - self._history.given_up.keys(), reason)

    def _kill_retired(self) -> None:
        for pid, deadline in self._retired.items():
            if time.monotonic() >= deadline and pid in self._watched:
                self._watched[pid].kill()

    def _check_stuck(self) -> None:
        for recovery in self._recoveries:
            if not recovery.is_loading or not self._fresh_dead(recovery):
                recovery.unnoticed_since = None
            elif recovery.unnoticed_since is None:
                recovery.unnoticed_since = time.monotonic()
            elif time.monotonic() - recovery.unnoticed_since > _UNNOTICED_DEATH_S:
                raise TritonStuck(", ".join(recovery.reasons))

    def _fresh_dead(self, recovery: _Recovery) -> set[int]:
        """Dead processes that may be of the models of a recovery, and began after it."""
        return {
            pid
            for pid in self._dead_pids - recovery.already_dead - recovery.replaced
            if self._model_of.get(pid) in (None, *recovery.reasons)
        }
