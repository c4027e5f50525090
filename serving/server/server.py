"""A Triton server that is started, watched and stopped as one thing."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

from onestream.serving.built.versions import models_in
from onestream.serving.server.control_socket import ControlSocket
from onestream.serving.server.errors import RepositoryMissing, ServerError, StopRequested, TritonNotFound
from onestream.serving.server.launching import Launcher
from onestream.serving.server.log_file import LogFile
from onestream.serving.server.supervisor import RestartHistory, RestartPolicy, Supervisor, TritonStuck
from onestream.serving.server.tracing import Tracing
from onestream.serving.server.triton.control import TritonControl
from onestream.serving.server.triton.flags import check_flags
from onestream.serving.server.triton.installation import (
    INSTALL_NUMPY,
    Device,
    TritonInstallation,
    find_triton,
    numpy_complaint,
    resolve_device,
)
from onestream.serving.server.triton.process import TritonProcess

_POLL_S = 0.05
_WAKE_UP_S = 0.5
# A start takes several seconds, so the window is longer than that of a model.
_TRITON_POLICY = RestartPolicy(window_s=120.0)


class Server:
    """Triton over a model repository, with its model processes supervised. A context manager.

    Models whose processes die or hang are restarted, and so is tritonserver, on the same ports; ``on_event`` hears of
    it. When that happens too often the server is finished: ``wait`` raises the reason. Nothing outlives this process,
    however it ends.

    Args:
        repository: folder of models.
        host: address to bind, for all three services. Only this machine can reach the default.
        http_port: 1 to 65535, or 0 for a free one; so are the other two.
        grpc_port: port of the gRPC service.
        metrics_port: port of the metrics service.
        device: *cpu* reads ``configs/cpu.pbtxt`` of every model that has one; *gpu* reads ``config.pbtxt``; *auto*
            is *gpu* where an NVIDIA driver is visible and Triton is not the embedded one.
        models: names to load, with what they need; None loads all.
        require_all: a model that does not load keeps the server from starting. Without it the others are served, at
            least one; ``failures`` names it, the server is not ready, and it is tried again when its files change.
        shared_memory: callers on this machine may make Triton read and write regions of /dev/shm that this user may:
            those of clients, and its own, by which a caller can end it.
        triton: a tritonserver binary; None searches for one.
        log_path: file for Triton's own log, overwritten; what exceeds 16 MiB goes on in it, and the two files before
            are kept beside it. None makes a temporary one, which is removed by a stop
            and kept after a failure.
        flags: arguments of tritonserver on top, such as ``--cache-config=local,size=1048576``.
        trace: address of the OTLP/HTTP collector that receives the spans of requests; None traces nothing.
        trace_rate: one of so many requests is traced, >= 1; those that come with a ``traceparent`` always are.
        startup_timeout_s: seconds until all models must be ready, > 0; None is 120 or 10 a model, the greater, and on
            a busy machine up to ten times that.
        stop_timeout_s: seconds that a stop may take before Triton is killed, >= 1.
        policy: how persistently a dead model is restarted.
        triton_policy: how persistently tritonserver is; None means 10 times in two minutes.
        on_event: receives one line for every event after the start, and for every TensorRT plan that is made before
            it, from any thread; None ignores them.
        on_log: receives every line of Triton's log, from the server's thread; None ignores them.

    Raises:
        ValueError: the ports are no ports, or two are equal; ``trace`` is the address of no collector; a flag is
            none, or is onestream's to set.
    """

    def __init__(
        self,
        repository: Path | str = "model_repository",
        *,
        host: str = "127.0.0.1",
        http_port: int = 8000,
        grpc_port: int = 8001,
        metrics_port: int = 8002,
        device: Device = "auto",
        models: Sequence[str] | None = None,
        require_all: bool = True,
        shared_memory: bool = False,
        triton: Path | None = None,
        log_path: Path | None = None,
        flags: Sequence[str] = (),
        trace: str | None = None,
        trace_rate: int = 1,
        startup_timeout_s: float | None = None,
        stop_timeout_s: float = 10.0,
        policy: RestartPolicy | None = None,
        triton_policy: RestartPolicy | None = None,
        on_event: Callable[[str], None] | None = None,
        on_log: Callable[[str], None] | None = None,
    ) -> None:
        chosen = [port for port in (http_port, grpc_port, metrics_port) if port != 0]
        if len(set(chosen)) != len(chosen) or not all(0 < port < 65536 for port in chosen):
            raise ValueError(
                f"the ports must be different numbers up to 65535, or 0 for free ones; "
                f"got {http_port} (http), {grpc_port} (grpc), {metrics_port} (metrics)"
            )
        self.repository = Path(repository)
        self._host = host
        self._ports = (http_port, grpc_port, metrics_port)
        self._device: Device = device
        self._wanted_models = ("*",) if models is None else tuple(models)
        self._require_all = require_all
        self._shared_memory = shared_memory
        self._given_triton = triton
        check_flags(flags)
        self._flags = tuple(flags)
        self._log_folder: Path | None = None
        self._log_path = log_path
        self._log_file: LogFile | None = None
        self._tracing = None if trace is None else Tracing(url=trace, rate=trace_rate)
        self._startup_timeout_s = startup_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._policy = policy or RestartPolicy()
        self._triton_policy = triton_policy or _TRITON_POLICY
        self._on_event = on_event or _ignore
        self._on_log = on_log or _ignore
        self._history = RestartHistory()
        # No events: their locks would block a signal handler that interrupts another one.
        self._stopping = self._hurried = False
        self._started_or_finished = threading.Event()
        self._finished = threading.Event()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._triton: TritonProcess | None = None
        self._launcher: Launcher | None = None
        self._installation: TritonInstallation | None = None

    def start(self) -> None:
        """Start Triton and wait until every model is loaded, or refused where not all are required.

        Returns early, with ``is_running`` false, if ``request_stop`` is called meanwhile.

        Raises:
            ServerError: it did not start; the class says why, and nothing is left behind but the log.
        """
        _check_repository(self.repository, self._wanted_models)
        self._installation = find_triton(self._given_triton)
        complaint = numpy_complaint(metadata.version("numpy"))
        if complaint is not None and self._installation.source == "embedded":
            raise TritonNotFound(f"cannot serve with numpy {complaint}; run: {INSTALL_NUMPY}")
        if self._log_path is None:
            self._log_folder = Path(tempfile.mkdtemp(prefix="onestream-log-"))
            self._log_path = self._log_folder / "triton.log"
        self._log_file = LogFile(self._log_path, announce=self._on_event)
        complaint = None if self._tracing is None else self._tracing.complaint()
        if self._tracing is not None and complaint is not None:
            self._on_event(f"the trace collector {self._tracing.url} is not reachable, traces are lost: {complaint}")
        # Triton dies with the thread that starts it, so that thread must live as long as the server.
        self._thread = threading.Thread(target=self._run, name="onestream-server", daemon=True)
        self._thread.start()
        try:
            _wait_for(self._started_or_finished)
        except BaseException:
            self.stop()
            raise
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the server is finished; tell whether it is.

        Args:
            timeout_s: how long to wait; None for ever.

        Raises:
            ServerError: Triton ended by itself too often, or could not be started again.
        """
        finished = self._finished.wait(timeout_s) if timeout_s is not None else _wait_for(self._finished)
        if finished and self._failure is not None:
            raise self._failure
        return finished

    def request_stop(self) -> None:
        """Ask for a stop and return at once; a second call kills Triton. Safe in a signal handler."""
        if self._stopping:
            self._hurried = True
        self._stopping = True

    def stop(self) -> None:
        """Stop, and remove everything the server made. Does nothing if it is not running."""
        self._stopping = True
        if self._thread is not None:
            self._thread.join()
        if self._log_folder is not None and self._failure is None:
            shutil.rmtree(self._log_folder, ignore_errors=True)

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        """Whether it has started and not finished."""
        return self._started_or_finished.is_set() and not self._finished.is_set()

    @property
    def http_address(self) -> str:
        """``host:port`` of the HTTP service, for tools that want no scheme."""
        return self._address("http")

    @property
    def grpc_address(self) -> str:
        """``host:port`` of the gRPC service, for tools that want no scheme."""
        return self._address("grpc")

    @property
    def http_url(self) -> str:
        """``http://host:port``."""
        return f"http://{self.http_address}"

    @property
    def grpc_url(self) -> str:
        """``grpc://host:port``."""
        return f"grpc://{self.grpc_address}"

    @property
    def metrics_url(self) -> str:
        """``http://host:port/metrics``."""
        return f"http://{self._address('metrics')}/metrics"

    @property
    def log_path(self) -> Path:
        """Triton's own log."""
        assert self._log_path is not None, "the server was not started"
        return self._log_path

    @property
    def models(self) -> list[str]:
        """Names of the models that were ready at the start, sorted."""
        return [] if self._launcher is None else list(self._launcher.models)

    @property
    def failures(self) -> dict[str, str]:
        """The reason of each model that did not load at the start, or lacks one that did not; one line each."""
        return {} if self._launcher is None else dict(self._launcher.failures)

    @property
    def pid(self) -> int:
        """The tritonserver's process id."""
        return self._running_triton().pid

    @property
    def control(self) -> TritonControl:
        """Loads and unloads models; no other caller may."""
        return self._running_triton().control

    @property
    def restarts(self) -> dict[str, int]:
        """The number of restarts of each model; models never restarted are absent."""
        return self._history.totals()

    @property
    def installation(self) -> TritonInstallation:
        """The Triton that runs."""
        assert self._installation is not None, "the server was not started"
        return self._installation

    @property
    def device(self) -> Literal["cpu", "gpu"]:
        """The configurations with which the models were loaded."""
        return resolve_device(self._device, self.installation)

    def _address(self, service: str) -> str:
        endpoints = self._running_triton().endpoints
        return f"{endpoints.reachable_host}:{endpoints.ports[service]}"

    def _running_triton(self) -> TritonProcess:
        assert self._triton is not None, "the server was not started"
        return self._triton

    def _run(self) -> None:
        """Do everything from start to end. Runs in the server's thread."""
        self._commands = ControlSocket(self.repository, self._running_triton, announce=self._on_event)
        try:
            launcher = self._launcher = self._open_launcher()
            self._triton = launcher.first()
            self._commands.start()
            self._started_or_finished.set()
            self._supervise(launcher)
            self._triton.stop(hurried=lambda: self._hurried, leaks=bool(self.restarts))
        except StopRequested:
            pass
        except BaseException as error:  # handed to the thread that waits
            self._failure = error
        finally:
            try:
                self._commands.close()
                if self._triton is not None:
                    self._triton.kill()
                if self._log_file is not None:
                    self._log_file.close()
            except Exception as error:  # those who wait for the end must hear of it all the same
                self._failure = self._failure or error
            self._finished.set()
            self._started_or_finished.set()

    def _open_launcher(self) -> Launcher:
        """What starts Triton; made when installation and log are known."""
        assert self._log_file is not None, "start opens it"
        start = partial(
            TritonProcess,
            installation=self.installation,
            repository=self.repository,
            device=self.device,
            models=self._wanted_models,
            shared_memory=self._shared_memory,
            log_file=self._log_file,
            stop_timeout_s=self._stop_timeout_s,
            flags=self._flags,
            tracing=self._tracing,
            on_log=self._on_log,
            on_event=self._on_event,
            stopping=lambda: self._stopping,
        )
        return Launcher(
            start,
            repository=self.repository,
            host=self._host,
            ports=self._ports,
            require_all=self._require_all,
            shared_memory=self._shared_memory,
            startup_timeout_s=self._startup_timeout_s,
            policy=self._triton_policy,
            models=self._history,
            announce=self._on_event,
            stopping=lambda: self._stopping,
        )

    def _supervise(self, launcher: Launcher) -> None:
        """Keep Triton and the models running until a stop is asked for.

        Raises:
            ServerError: Triton ended too often, or could not be started again.
        """
        while not self._stopping:
            triton = self._running_triton()
            supervisor = Supervisor(
                triton, policy=self._policy, history=self._history, announce=self._on_event, died=launcher.died
            )
            try:
                while not self._stopping:
                    triton.check_running()
                    triton.follow_log()
                    triton.hide_regions()
                    supervisor.poll()
                    time.sleep(_POLL_S)
            except (TritonStuck, ServerError) as error:
                supervisor.close()
                self._triton = launcher.again(triton, str(error))
                self._commands.again()
            finally:
                supervisor.close()


def _wait_for(event: threading.Event) -> bool:
    """Wait for an event, and wake up now and then: a signal just before Python's wait is handled only after it."""
    while not event.wait(_WAKE_UP_S):
        pass
    return True


def _ignore(_line: str) -> None:
    """Drop a line."""


def _check_repository(repository: Path, wanted: Sequence[str]) -> None:
    """Refuse a repository in which Triton would find nothing, or not what is wanted."""
    build = "run `onestream build pipelines/classify.yaml` to make one"
    if not repository.is_dir():
        raise RepositoryMissing(f"the model repository {repository} does not exist; {build}")
    if not models_in(repository) and not any(repository.glob("*/configs/*.pbtxt")):
        raise RepositoryMissing(f"the model repository {repository} holds no model (NAME/config.pbtxt); {build}")
    for name in wanted:
        if name != "*" and not (repository / name).is_dir():
            known = ", ".join(models_in(repository))
            raise RepositoryMissing(f"the model repository {repository} holds no model {name!r}; it holds {known}")
