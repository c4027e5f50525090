"""One run of tritonserver: start it, wait until its models are ready, stop it, and clean up after it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from onestream.serving.built.versions import models_to_load, read_pins
from onestream.serving.child_process import tied
from onestream.serving.errors import BadVersion
from onestream.serving.server.errors import (
    RepositoryMissing,
    ServerError,
    StartupTimeout,
    StopRequested,
    TritonHung,
)
from onestream.serving.server.fit import fit_instances, usable_cores
from onestream.serving.server.log_file import LogFile, TritonLog
from onestream.serving.server.staging import StagedRepository
from onestream.serving.server.tensorrt_prebuild import fit_plans
from onestream.serving.server.tracing import Tracing
from onestream.serving.server.triton.control import ControlError, ModelState, TritonControl
from onestream.serving.server.triton.guard import start_guarded
from onestream.serving.server.triton.hangs import SILENCE_S, STALLED_S, HangWatch, Liveness
from onestream.serving.server.triton.hidden_arguments import with_hidden_arguments
from onestream.serving.server.triton.installation import (
    ADMIN_HEADER,
    Endpoints,
    TritonInstallation,
    triton_command,
    with_deep_stacks,
)
from onestream.serving.server.triton.load_failures import (
    DIED_LOADING,
    died_before_loading,
    explain_exit,
    load_error,
    model_reason,
    models_unloaded,
    pending_models,
    services_started,
)
from onestream.serving.server.triton.model_processes import (
    KnownProcess,
    ModelProcess,
    ModelProcesses,
    find_model_processes,
    read_stat,
)
from onestream.serving.server.triton.orphan_cleanup import (
    SHM_FOLDER,
    end_processes,
    hide_regions,
    new_prefix,
    remove_environments,
    remove_leftovers,
    remove_regions,
)
from onestream.serving.server.triton.ports import check_port, metrics_answer
from onestream.serving.server.triton.private_memory import with_private_memory

_POLL_S = 0.1
# Triton waits for ever for a model process that died before its first message; later deaths it reports within 2 s.
_UNNOTICED_DEATH_S = 3.0
_KILL_TIMEOUT_S = 5.0
# Triton 2.51's gRPC service can wait for ever for a stream that its caller gave up just before the stop.
_CLOSING_S = 3.0


class TritonProcess:
    """A running tritonserver. The thread that makes one must live as long as it: when it ends, Triton is killed.

    Args:
        installation: which Triton.
        repository: folder of models.
        endpoints: where it listens.
        device: which configurations it reads. On a GPU this makes sure of TensorRT plans first, which can take minutes.
        models: names to load; ``("*",)`` loads all.
        without: models that Triton shall not see.
        one_by_one: load one model after the other, which asks less of a busy machine.
        shared_memory: callers may register regions of this machine's /dev/shm. Without it, Triton and its models get
            a /dev/shm of their own where the kernel allows that.
        log_file: receives everything Triton and the models print.
        stop_timeout_s: seconds that a stop may take before Triton is killed.
        flags: arguments of tritonserver on top (``onestream.serving.server.triton.flags``).
        tracing: which requests are traced; None traces none.
        on_log: receives each new line of the log, while ``wait_until_ready`` or ``follow_log`` runs.
        on_event: receives a line for each step in making the plans.
        stopping: asked often while plans are made; True ends that.

    Raises:
        ServerError: a port cannot be bound (PortInUse where another program has it), or a plan cannot be built.
            Nothing is started then.
        StopRequested: ``stopping`` said so.
    """

    def __init__(
        self,
        *,
        installation: TritonInstallation,
        repository: Path,
        endpoints: Endpoints,
        device: Literal["cpu", "gpu"],
        models: Sequence[str],
        without: Collection[str],
        one_by_one: bool,
        shared_memory: bool,
        log_file: LogFile,
        stop_timeout_s: float,
        flags: Sequence[str],
        tracing: Tracing | None,
        on_log: Callable[[str], None],
        on_event: Callable[[str], None],
        stopping: Callable[[], bool],
    ) -> None:
        for service, port in endpoints.ports.items():
            check_port(endpoints.host, port, service)
        remove_leftovers()
        self.endpoints = endpoints
        self.region_prefix = new_prefix()
        self._stop_timeout_s = stop_timeout_s
        self._run_folder = Path(tempfile.mkdtemp(prefix=self.region_prefix))
        # What messages may name: the repository, and the view of it that Triton is given.
        self._repositories = (repository, self._run_folder / "repository")

        def fit(folder: Path, fitted: Path, names: Sequence[str]) -> Path:
            folder = fit_instances(folder, fitted, cores=usable_cores(), device=device)
            if device == "cpu":
                return folder
            plans = fitted.with_name(f"{fitted.name}-plans")
            return fit_plans(folder, plans, models=names, progress=on_event, stopping=stopping)

        try:
            pins = read_pins(repository)
            chosen = models_to_load(repository, pins, models)
            self._models = models = [name for name in chosen if name not in without]
            self.view = StagedRepository(
                repository, self._run_folder / "repository", models=models, without=without, fit=fit, pins=pins
            )
        except BaseException as error:
            shutil.rmtree(self._run_folder, ignore_errors=True)
            if isinstance(error, BadVersion):
                raise RepositoryMissing(str(error)) from None
            raise
        self._admin_token = admin_token = secrets.token_hex(16)
        self.control = TritonControl(
            f"{endpoints.reachable_host}:{endpoints.grpc_port}", header=ADMIN_HEADER, token=admin_token
        )
        command = triton_command(
            installation,
            repository=self.view.folder,
            endpoints=endpoints,
            device=device,
            models=models,
            shared_memory=shared_memory,
            run_folder=self._run_folder,
            region_prefix=self.region_prefix,
            admin_token=admin_token,
            exit_timeout_s=max(1, int(stop_timeout_s)),
            one_by_one=one_by_one,
            flags=flags,
            tracing=tracing,
        )
        arguments = with_deep_stacks(*with_hidden_arguments(*command.arguments))
        if not shared_memory:
            arguments = with_private_memory(*arguments)
        self._log = TritonLog(log_file, on_line=on_log)
        self._guard, pid = start_guarded(
            *arguments,
            tie=partial(tied, by=signal.SIGTERM),
            prefix=self.region_prefix,
            regions=str(SHM_FOLDER / self.region_prefix),
            folder=str(self._run_folder),
            environment=command.environment,
            output=self._log.input,
        )
        self._log.started()
        started = read_stat(pid)
        self._triton = KnownProcess(pid=pid, start_ticks=started.start_ticks if started else 0)
        self._liveness: Liveness | None = None
        self._hangs = HangWatch()
        self._known_processes: dict[int, ModelProcess] = {}

    @property
    def pid(self) -> int:
        """The tritonserver's process id; its parent is a guard (``onestream.serving.server.triton.guard``)."""
        return self._triton.pid

    @property
    def has_ended(self) -> bool:
        """Whether tritonserver itself has ended; its guard may still be ending its model processes."""
        return self._triton.ending() is not None

    def wait_until_ready(
        self, *, timeout_s: float, stopping: Callable[[], bool], may_stall: bool
    ) -> tuple[list[str], dict[str, str]]:
        """Wait until every model is loaded or refused and every port answers.

        Args:
            timeout_s: how long to wait.
            stopping: asked often; True ends the wait.
            may_stall: whether models may load without using the CPU, as one that waits for something else does.

        Returns:
            The names of the models that are loaded, sorted, and of the others the reasons, for ``load_error``.

        Raises:
            StopRequested: ``stopping`` said so.
            ServerError: it did not start; the class says why.
        """
        deadline = time.monotonic() + timeout_s
        deaths: dict[int, float] = {}
        while not (
            services_started(self._log.text())
            and metrics_answer(self.endpoints.reachable_host, self.endpoints.metrics_port)
        ):
            self.hide_regions()
            if stopping():
                raise StopRequested
            self.check_running()
            self._log.follow()
            self._check_unnoticed_deaths(deaths, may_stall=may_stall)
            if time.monotonic() > deadline:
                pending = pending_models(self._log.text())
                raise StartupTimeout(
                    f"the server was not ready within {timeout_s:g} s (still loading: "
                    f"{', '.join(pending) or 'no model'}); its log is {self._log.path}. Allow more time with "
                    "--startup-timeout-s, or load fewer models with --model",
                    dict.fromkeys(pending, f"it was not loaded within {timeout_s:g} s"),
                )
            time.sleep(_POLL_S)
        self.hide_regions()
        self._log.follow()
        self.model_processes()
        found = self._loaded_models()
        self._liveness = Liveness(self.control.check_live)
        return found

    def check_running(self) -> None:
        """Raise a ``ServerError``, whose class tells why, if Triton has ended, or must be ended because it hangs."""
        if self.has_ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.wait(_KILL_TIMEOUT_S)
        if (returncode := self._guard.poll()) is not None:
            self._log.follow()
            raise explain_exit(
                self._log.text(),
                returncode=returncode,
                host=self.endpoints.host,
                ports=self.endpoints.ports,
                log_path=self._log.path,
            )
        if self._triton.is_stopped():
            raise TritonHung(f"tritonserver was stopped by a signal; its log is {self._log.path}")
        if self._liveness is not None and self._liveness.is_silent:
            raise TritonHung(f"tritonserver did not answer for {SILENCE_S:g} s; its log is {self._log.path}")
        if (guard := read_stat(self._guard.pid)) is not None and guard.is_stopped:
            # Nothing was lost: it has nothing to do before the end.
            self._guard.send_signal(signal.SIGCONT)

    def follow_log(self) -> None:
        """Hand over the log's new lines."""
        self._log.follow()

    @property
    def hides_admin_token(self) -> bool:
        """Whether the arguments of the running Triton, which every user may read, lack the administration's token."""
        try:
            return self._admin_token.encode() not in Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return True

    def hide_regions(self) -> None:
        """Take the regions from other users, as far as they lie where those see them. Call it often."""
        hide_regions(self.region_prefix)

    def model_processes(self) -> ModelProcesses:
        """Find the model processes as they are now."""
        found = find_model_processes(self.pid)
        self._known_processes.update((process.pid, process) for process in found.running)
        return found

    def known_processes(self) -> dict[int, ModelProcess]:
        """Return every model process that was seen so far, by process id."""
        return dict(self._known_processes)

    def model_states(self) -> dict[str, ModelState]:
        """The state of every model, by name. Raises ``ServerError`` where the server does not answer."""
        try:
            return self.control.model_states()
        except ControlError as error:
            raise ServerError(f"the server does not answer: {error}") from None

    def stop(self, *, hurried: Callable[[], bool], leaks: bool) -> None:
        """Stop Triton and its model processes, within the stop timeout and a few seconds, and clean up.

        Args:
            hurried: asked often; True kills at once.
            leaks: a model process died in this Triton, which then waits for the dead process's requests until the
                timeout; kill it as soon as the last model process has ended.
        """
        if self._guard.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            deadline = time.monotonic() + self._stop_timeout_s + 1.0
            unloaded = False
            while self._guard.poll() is None and time.monotonic() < deadline and not hurried():
                if not self.model_processes().running and leaks:
                    break
                if not unloaded and models_unloaded(self._log.text()):
                    unloaded, deadline = True, min(deadline, time.monotonic() + _CLOSING_S)
                time.sleep(_POLL_S)
        self.kill()

    def kill(self) -> None:
        """Kill Triton and its model processes, and clean up. Does nothing the second time."""
        if self._log.closed:
            return
        if self._liveness is not None:
            self._liveness.close()
        if self._guard.poll() is None:
            # It kills Triton and its model processes, and ends when they have ended.
            self._guard.send_signal(signal.SIGTERM)
            self._guard.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.wait(_KILL_TIMEOUT_S)
        # What a guard that was killed, or is not done in time, leaves behind.
        end_processes(self.region_prefix)
        self._triton.kill()
        self._guard.wait(_KILL_TIMEOUT_S)
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        while self._triton.ending() is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        self._log.close()
        self.control.close()
        remove_regions(self.region_prefix)
        remove_environments()
        shutil.rmtree(self._run_folder, ignore_errors=True)

    def _loaded_models(self) -> tuple[list[str], dict[str, str]]:
        try:
            states = self.model_states()
        except ServerError:
            self.check_running()
            raise
        wanted = set(states) if "*" in self._models else set(self._models)
        loaded = sorted(name for name, state in states.items() if state.state == "READY")
        failed = sorted(wanted.union(name for name, state in states.items() if state.state) - set(loaded))
        return loaded, self._reasons(failed, states)

    def check_loaded(self, models: Sequence[str]) -> None:
        """Raise the reason where one of these models is not loaded.

        Raises:
            ServerError: a library is missing, a model did not load, or Triton does not answer.
        """
        states = self.model_states()
        failed = [name for name in models if name not in states or states[name].state != "READY"]
        if failed:
            raise load_error(self._reasons(failed, states))

    def _reasons(self, failed: Sequence[str], states: dict[str, ModelState]) -> dict[str, str]:
        log = self._log.text()
        return {
            name: model_reason(name, states[name].reason if name in states else "", log, self._repositories)
            for name in failed
        }

    def _check_unnoticed_deaths(self, deaths: dict[int, float], *, may_stall: bool) -> None:
        """Fail for a model process that ended, or stalled, without Triton noticing. ``deaths`` is kept between calls.

        One that does not run is killed before it goes on, which would end Triton.
        """
        now = time.monotonic()
        found = self.model_processes()
        self._hangs.kill_hung(found.running)
        pids = (self.pid, *(process.pid for process in found.running))
        if not may_stall and self._hangs.is_stalled(self._log.text(), pids):
            raise TritonHung(f"tritonserver loaded nothing for {STALLED_S:g} s; its log is {self._log.path}")
        for pid in found.dead_pids:
            if now - deaths.setdefault(pid, now) > _UNNOTICED_DEATH_S:
                log = self._log.text()
                code = os.waitstatus_to_exitcode(stat.wait_status) if (stat := read_stat(pid)) else None
                known = self._known_processes.get(pid)
                models = pending_models(log) if known is None else [known.model]
                reason = DIED_LOADING if pid in self._hangs.killed else died_before_loading(log, code)
                raise load_error(
                    {name: model_reason(name, reason, log, self._repositories) for name in models or ["(unknown)"]}
                )
