"""The socket at which commands reach a repository's server: in the repository's run folder, one JSON a line.

Who may write the repository may run anything in its server, so the folder's permissions are the only access control. A
rollout lasts as long as its connection: when that ends early, the server returns to the version from before.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from onestream.serving.built.run_folder import RUN_DIR_VARIABLE, run_folder
from onestream.serving.errors import ServingError
from onestream.serving.server.loading import Loading
from onestream.serving.server.rollout import Rollout
from onestream.serving.server.triton.process import TritonProcess
from onestream.wire.plain_text import first_line

SOCKET_FILE = ".rollout.sock"
_POLL_S = 0.2
_LOADING = ("models", "load", "unload")
_ROLLOUT = {"status": "status", "load_version": "load", "switch": "switch", "keep": "keep"}
"""Methods of ``Rollout`` by their commands."""


class ControlSocket:
    """Listens from ``start`` until ``close``, in a thread, to one session at a time.

    Args:
        repository: the folder whose server this is.
        triton: gives the tritonserver that runs now.
        announce: receives one line for every change of what is served; called from the thread.
    """

    def __init__(
        self, repository: Path, triton: Callable[[], TritonProcess], *, announce: Callable[[str], None]
    ) -> None:
        self._repository = repository
        self._triton = triton
        self._announce = announce
        self._stopping = threading.Event()
        self._socket: socket.socket | None = None
        self._loading = Loading(triton, announce=announce)
        self._changing = threading.Lock()
        self._thread = threading.Thread(target=self._listen, name="control", daemon=True)

    def start(self) -> None:
        """Listen, unless the folder is read-only or another server listens in it, which is announced."""
        listening = socket.socket(socket.AF_UNIX)
        folder = run_folder(self._repository)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _address(folder) as address:
                with contextlib.suppress(OSError):
                    with socket.socket(socket.AF_UNIX) as other:
                        other.connect(address)
                    self._announce(f"another server of {self._repository} takes its commands; this one takes none")
                    listening.close()
                    return
                (folder / SOCKET_FILE).unlink(missing_ok=True)
                listening.bind(address)
                os.chmod(folder / SOCKET_FILE, 0o600)
        except OSError as error:
            listening.close()
            self._announce(
                f"`onestream models` and `onestream rollout` cannot reach this server: {folder} takes no socket "
                f"({error.strerror}); set {RUN_DIR_VARIABLE} to a writable folder"
            )
            return
        listening.listen(4)
        listening.settimeout(_POLL_S)
        self._socket = listening
        self._thread.start()

    def close(self) -> None:
        """Take no more commands. A rollout under way is undone by the next start, which goes by the pin."""
        self._stopping.set()
        if self._socket is not None:
            self._thread.join(2 * _POLL_S)
            self._socket.close()
            with contextlib.suppress(OSError):
                (run_folder(self._repository) / SOCKET_FILE).unlink()

    def again(self) -> None:
        """Repeat what was loaded and unloaded on a tritonserver that replaces another, after a running command."""
        with self._changing:
            self._loading.again()

    def _listen(self) -> None:
        assert self._socket is not None
        while not self._stopping.is_set():
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            try:
                with connection:
                    connection.setblocking(True)
                    self._serve(connection)
            except OSError:
                continue
            except Exception as error:  # of one session, which must not end those after it
                self._announce(f"a command failed: {type(error).__name__}: {first_line(error)}")

    def _serve(self, connection: socket.socket) -> None:
        rollout: Rollout | None = None
        try:
            with connection.makefile("r", encoding="utf-8") as lines:
                for line in lines:
                    command = json.loads(line)
                    do, arguments = command["do"], command["arguments"]
                    try:
                        with self._changing:
                            if do in _LOADING:
                                answer = {"result": getattr(self._loading, do)(*arguments)}
                            else:
                                rollout = rollout or Rollout(self._triton, arguments[0], announce=self._announce)
                                answer = {"result": getattr(rollout, _ROLLOUT[do])(*arguments[1:])}
                    except ServingError as error:
                        answer = {"error": str(error)}
                    connection.sendall(json.dumps(answer).encode() + b"\n")
        finally:
            if rollout is not None and not self._stopping.is_set():
                with self._changing:
                    rollout.end()


class ControlSession:
    """Commands of another process, one after the other. A context manager; a rollout that is not kept ends with it.

    Args:
        repository: the folder of models that a server runs on this machine.

    Raises:
        ServingError: no server there takes commands.
    """

    def __init__(self, repository: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            with _address(run_folder(repository)) as address:
                self._socket.connect(address)
        except OSError:
            self._socket.close()
            raise ServingError(
                f"no server takes commands for {repository}; start `onestream serve` with it, on this machine, as a "
                f"user who may write there and with the same {RUN_DIR_VARIABLE}, if any"
            ) from None
        self._lines = self._socket.makefile("r", encoding="utf-8")

    def __enter__(self) -> ControlSession:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()

    def ask(self, do: str, *arguments: str | int) -> Any:
        """Have the server do one thing, and return its result.

        *models*, *load* and *unload* with a name are those of ``Loading``; *status*, *load_version*, *switch* and
        *keep*, with a pipeline and a version where it takes one, those of ``Rollout``. Raises ``ServingError``: it says
        why not, or has ended.
        """
        try:
            command = {"do": do, "arguments": arguments}
            self._socket.sendall(json.dumps(command).encode() + b"\n")
            line = self._lines.readline()
        except OSError:
            line = ""
        if not line:
            raise ServingError("the server ended meanwhile; a rollout that was not kept is undone")
        answer = json.loads(line)
        if "error" in answer:
            raise ServingError(answer["error"])
        return answer["result"]


@contextlib.contextmanager
def _address(folder: Path) -> Iterator[str]:
    """The socket's address by way of its open folder: a path of more than 107 bytes is none."""
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{opened}/{SOCKET_FILE}"
    finally:
        os.close(opened)
