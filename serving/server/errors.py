"""The errors of a server that did not start, or stopped.

::

    ServingError
    └── ServerError
        ├── TritonNotFound       no tritonserver on this machine, or none for this Python and NumPy
        ├── RepositoryMissing    the model repository does not exist, or holds no model
        ├── PortInUse            another program listens on a port that the server needs
        ├── MissingLibrary       the loader cannot find a shared library; the message names it
        ├── ModelLoadFailed      a model did not load; the message names it and says why
        ├── StartupTimeout       the server was not ready in time
        ├── TritonHung           tritonserver was stopped by a signal, or does not answer any more
        └── TritonDied           tritonserver ended by itself, with an exit code or a signal

Each message is one readable line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from onestream.serving.errors import ServingError


class ServerError(ServingError):
    """Base of everything that ends a server, or keeps it from starting.

    Attributes:
        failures: the models that kept it from starting, with the reason of each, one line without server paths and
            traces; empty where it was no model.
    """

    failures: Mapping[str, str] = MappingProxyType({})


class StopRequested(Exception):
    """The start was interrupted because the server is to stop. No error: nobody waits for the server any more."""


class TritonNotFound(ServerError):
    """There is no tritonserver to run, or none that runs in this Python environment."""


class RepositoryMissing(ServerError):
    """The model repository does not exist, or holds no model, or not the one that is wanted."""


class PortInUse(ServerError):
    """Another program listens on a port that the server needs.

    Attributes:
        host: the address.
        port: the port, 1 to 65535.
        service: *http*, *grpc* or *metrics*.
    """

    def __init__(self, host: str, port: int, service: str) -> None:
        super().__init__(
            f"port {port} ({service}) on {host} is in use by another program; "
            f"stop it, or choose another port with --{service}-port"
        )
        self.host = host
        self.port = port
        self.service = service


class MissingLibrary(ServerError):
    """The loader cannot find a shared library.

    Attributes:
        library: its file name, such as ``libpython3.11.so.1.0``.
    """

    def __init__(self, library: str, needed_by: str, failures: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(
            f"{needed_by} needs the shared library {library}, which this machine lacks; run `onestream doctor`"
        )
        self.library = library
        self.failures = failures


class ModelLoadFailed(ServerError):
    """One model or several did not load. ``failures`` is never empty."""

    def __init__(self, failures: Mapping[str, str]) -> None:
        super().__init__("; ".join(load_failed(name, reason) for name, reason in failures.items()))
        self.failures = dict(failures)


def load_failed(model: str, reason: str) -> str:
    """The line that says that a model did not load."""
    return f"model '{model}' failed to load: {reason}"


class StartupTimeout(ServerError):
    """The server was not ready in time; ``failures`` are the models that were still loading."""

    def __init__(self, message: str, failures: Mapping[str, str]) -> None:
        super().__init__(message)
        self.failures = failures


class TritonHung(ServerError):
    """tritonserver was stopped by a signal, or does not answer any more."""


class TritonDied(ServerError):
    """Triton ended by itself.

    Attributes:
        returncode: the exit code, or minus the signal's number.
        log_path: Triton's own log.
    """

    def __init__(self, how: str, returncode: int, log_path: Path) -> None:
        super().__init__(f"tritonserver {how}; its log is {log_path}")
        self.returncode = returncode
        self.log_path = log_path
