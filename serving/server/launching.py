"""Starts a server's tritonserver: at first, and again in the place of one that has ended."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from onestream.serving.server.errors import (
    ModelLoadFailed,
    PortInUse,
    ServerError,
    StopRequested,
    TritonDied,
    TritonHung,
    load_failed,
)
from onestream.serving.server.fit import startup_limit_s
from onestream.serving.server.supervisor import RestartHistory, RestartPolicy
from onestream.serving.server.triton.control import ControlError
from onestream.serving.server.triton.installation import Endpoints
from onestream.serving.server.triton.load_failures import DIED_LOADING, load_error
from onestream.serving.server.triton.orphan_cleanup import has_private_memory
from onestream.serving.server.triton.ports import free_port
from onestream.serving.server.triton.process import TritonProcess

_POLL_S = 0.05
_ATTEMPTS = 3
_CRASHES = {-signal.SIGABRT, -signal.SIGSEGV}
"""What may not come again: how Triton 2.51 ends where a model process is late."""
_TRITON = "tritonserver"


class Launcher:
    """Starts Triton, and knows which models it serves. For the thread in which Triton runs.

    Args:
        start: starts one, a ``TritonProcess``, with the arguments ``endpoints``, ``without`` and ``one_by_one``.
        repository: folder of models.
        host: address to bind.
        ports: of HTTP, gRPC and metrics; 0 for a free one.
        require_all: a model that does not load keeps the server from starting; else the others are served.
        shared_memory: as of ``TritonProcess``.
        startup_timeout_s: seconds until all models must be loaded or refused; None for ``fit.startup_limit_s``.
        policy: how persistently one that has ended is started again.
        models: the history of restarts of models, to which those that do not load are added as given up.
        announce: receives one line for every event.
        stopping: asked often; True ends a start.

    Attributes:
        models: names of the models that were ready at the last start, sorted.
        failures: the reasons of the others, by name.
        died: of these the ones whose processes died, which may be the machine's fault: another try may help.
    """

    def __init__(
        self,
        start: Callable[..., TritonProcess],
        *,
        repository: Path,
        host: str,
        ports: tuple[int, int, int],
        require_all: bool,
        shared_memory: bool,
        startup_timeout_s: float | None,
        policy: RestartPolicy,
        models: RestartHistory,
        announce: Callable[[str], None],
        stopping: Callable[[], bool],
    ) -> None:
        self.models: list[str] = []
        self.failures: dict[str, str] = {}
        self.died: dict[str, str] = {}
        self._start = start
        self._repository = repository
        self._host, self._ports = host, ports
        self._require_all = require_all
        self._shared_memory = shared_memory
        self._startup_timeout_s = startup_timeout_s
        self._policy = policy
        self._model_history = models
        self._announce = announce
        self._stopping = stopping
        self._left_out: dict[str, str] = {}
        self._history = RestartHistory()

    def first(self) -> TritonProcess:
        """Start Triton on the chosen ports; on other free ports if a port chosen freely was taken meanwhile.

        A model process that does not run for a second while it loads, as on a very busy machine, makes Triton's Python
        backend crash (triton-inference-server/server#8882), give the model up, or wait for ever. Then Triton is started
        again, and loads one model after the other.

        Raises:
            StopRequested: ``stopping`` said so.
            ServerError: it did not start.
        """
        one_by_one = False
        for left in reversed(range(_ATTEMPTS)):
            try:
                return self._start_triton(self._choose_endpoints(), one_by_one=one_by_one)
            except PortInUse as error:
                if left == 0 or error.port in self._ports:
                    raise
            except TritonDied as error:
                if left == 0 or error.returncode not in _CRASHES:
                    raise
                one_by_one = True
                self._announce("tritonserver crashed while it started; starting it again, one model after the other")
            except (ModelLoadFailed, TritonHung) as error:
                if left == 0 or one_by_one or (error.failures and set(error.failures.values()) != {DIED_LOADING}):
                    raise
                one_by_one = True
                self._announce(f"{error}; starting it again, one model after the other")
        raise AssertionError("the last attempt returns or raises")

    def again(self, ended: TritonProcess, reason: str) -> TritonProcess:
        """Start a new Triton on the same ports, in place of one that has ended or must end. Raises as ``first``."""
        began = time.monotonic()
        ended.kill()
        attempts = _ATTEMPTS
        while True:
            recent = self._history.recent(_TRITON, self._policy.window_s)
            if recent >= self._policy.max_restarts:
                raise ServerError(f"{reason}; given up after {recent} restarts in {self._policy.window_s:g} s")
            self._announce(f"{reason}; starting it again")
            self._pause(self._policy.delay_s(recent))
            self._history.add(_TRITON)
            try:
                triton = self._start_triton(ended.endpoints, one_by_one=attempts < _ATTEMPTS)
            except (ModelLoadFailed, TritonDied, TritonHung, PortInUse) as error:
                attempts -= 1
                if attempts == 0:
                    raise
                reason = str(error)
            else:
                self._announce(f"restarted tritonserver in {time.monotonic() - began:.1f} s")
                return triton

    def _choose_endpoints(self) -> Endpoints:
        chosen: list[int] = []
        for port in self._ports:
            chosen.append(port or free_port(self._host, but={*self._ports, *chosen}))
        http_port, grpc_port, metrics_port = chosen
        return Endpoints(host=self._host, http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port)

    def _start_triton(self, endpoints: Endpoints, *, one_by_one: bool) -> TritonProcess:
        """Start Triton; without the models that keep it from starting, where not all are required."""
        while True:
            try:
                return self._start_with_the_others(endpoints, one_by_one=one_by_one)
            except ServerError as error:
                found = {name: reason for name, reason in error.failures.items() if name not in self._left_out}
                known = {path.name for path in self._repository.iterdir() if path.is_dir()}
                if self._require_all or not found or known <= found.keys() | self._left_out.keys():
                    raise
                self._left_out |= found
                self._announce(f"{error}; starting again without {', '.join(found)}")

    def _start_with_the_others(self, endpoints: Endpoints, *, one_by_one: bool) -> TritonProcess:
        """Start Triton with all models but those that are left out."""
        triton = self._start(endpoints=endpoints, without=self._left_out.keys(), one_by_one=one_by_one)
        try:
            # Looked at before they are loaded, so that no change is missed.
            files = {path.name: triton.view.files_of(path.name) for path in triton.view.folder.iterdir()}
            timeout_s = self._startup_timeout_s or startup_limit_s(len(files))
            self.models, failed = triton.wait_until_ready(
                timeout_s=timeout_s, stopping=self._stopping, may_stall=one_by_one
            )
            if failed and (self._require_all or not self.models):
                raise load_error(failed)
            self.failures = {**self._left_out, **failed}
            causes = {**self._left_out, **(load_error(failed).failures if failed else {})}
            self.died = {name: reason for name, reason in causes.items() if reason == DIED_LOADING}
            self._model_history.given_up |= {
                name: files.get(name, frozenset()) for name in causes if name not in self.died
            }
            if causes:
                self._say_what_failed(causes)
            # Triton must not be ready without them; one whose files are gone or malformed it does not even know.
            for model in self._model_history.given_up.keys() - set(self.models):
                with contextlib.suppress(ControlError):
                    triton.control.keep_unready(model)
            self._say_who_reads(triton)
        except BaseException:
            triton.kill()
            raise
        return triton

    def _say_what_failed(self, causes: Mapping[str, str]) -> None:
        """Say which models do not load, and what is not served because of them."""
        for name, reason in causes.items():
            self._announce(load_failed(name, reason))
        self._announce(
            f"serving the other models, without {', '.join(sorted(self.failures))}. The server is not ready until "
            "these load: change the files of what failed, or restart the server"
        )

    def _say_who_reads(self, triton: TritonProcess) -> None:
        """Say which protection from other users of this machine could not be had."""
        if not triton.hides_admin_token:
            self._announce(
                "other users of this machine can read the administration token in Triton's command line: "
                "the kernel does not permit this user to hide it"
            )
        if not (self._shared_memory or has_private_memory(triton.pid)):
            self._announce(
                "the kernel does not permit this user a private /dev/shm; the models' regions are in that of this "
                "machine or container, readable by this user only"
            )

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._stopping():
                raise StopRequested
            time.sleep(_POLL_S)
