"""Triton's log: a file of bounded size, and the pipe from which it is filled.

A full disk costs lines of the file and nothing else: what Triton says is read from the pipe, never from the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from onestream.serving.server.errors import ServerError

MAX_FILE_BYTES = 16 << 20
"""Size at which a log becomes NAME.1: with two kept, weeks of a server that has little to say, and no disk filled."""

KEPT_FILES = 2

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_PIPE_BYTES = 1 << 20  # The most that a user may ask for by default: what Triton can say while this process is busy.
_READ_BYTES = 1 << 16
_TAIL_BYTES = 1 << 20  # Enough for everything since a failure began; searched often while Triton starts.
_UNTAKEN_BYTES = 4 << 20
_POLL_MS = 100
_RETRY_S = 1.0


class LogFile(RotatingFileHandler):
    """A file that takes bytes and never fails. At ``MAX_FILE_BYTES`` it is renamed to NAME.1, that one to NAME.2.

    Args:
        path: overwritten. A terminal, a pipe or a device is written to as it is.
        announce: is called with a line when the file cannot be written, and when it can again.

    Raises:
        ServerError: the file cannot be opened for a reason other than a full disk.
    """

    terminator = ""

    def __init__(self, path: Path, *, announce: Callable[[str], None]) -> None:
        # In Latin-1 every byte is one character.
        super().__init__(path, maxBytes=MAX_FILE_BYTES, backupCount=KEPT_FILES, encoding="latin-1", delay=True)
        self.path = path
        self._announce = announce
        self._lost_bytes = 0
        self._retry_at = 0.0
        try:
            if path.is_file():
                os.truncate(path, 0)
            self.stream = self._open()
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise ServerError(f"cannot write the log to {path}: {error.strerror}") from None

    def write(self, data: bytes) -> None:
        """Append ``data``, or count it as lost."""
        lost = self._lost_bytes
        if lost and time.monotonic() < self._retry_at:
            self._lost_bytes += len(data)
            return
        self.handle(logging.makeLogRecord({"msg": data.decode("latin-1")}))
        if lost and self._lost_bytes == lost:
            self._announce(f"the log {self.path} can be written again; {lost} bytes are missing")
            self._lost_bytes = 0

    def _open(self) -> TextIOWrapper:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return super()._open()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        """Count what was not written, and close the file, which is opened again after a second."""
        if not self._lost_bytes:
            error = sys.exc_info()[1]
            reason = error.strerror if isinstance(error, OSError) else error
            self._announce(f"the log {self.path} cannot be written, its lines are lost: {reason}")
        self._lost_bytes += len(record.msg)
        self._retry_at = time.monotonic() + _RETRY_S
        with contextlib.suppress(OSError):
            self.close()

    def doRollover(self) -> None:  # noqa: N802  # logging's name
        """Rename the files; in a folder where nothing may be renamed, begin the file anew."""
        try:
            super().doRollover()
        except OSError:
            os.truncate(self.path, 0)


class TritonLog:
    """The output of one tritonserver and its models: written to the file, remembered, and handed over line by line.

    A thread reads the pipe all the time, so that Triton does not wait for the reader of the lines.

    Args:
        file: receives everything.
        on_line: receives the lines, from the thread that calls ``follow``.
    """

    def __init__(self, file: LogFile, *, on_line: Callable[[str], None]) -> None:
        self._file = file
        self._on_line = on_line
        self._output, self.input = os.pipe()
        """``input`` is the end of the pipe that Triton gets; ``started`` closes this process's copy."""
        os.set_blocking(self._output, False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._output, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._lock = threading.Lock()
        self._tail = bytearray()
        self._untaken = bytearray()
        self._left_out = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="onestream-log", daemon=True)

    @property
    def path(self) -> Path:
        """The file's path."""
        return self._file.path

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed.is_set()

    def started(self) -> None:
        """Begin to read, when Triton has the pipe's other end."""
        os.close(self.input)
        self._thread.start()

    def text(self) -> str:
        """The end of what was printed until now, which holds the reason for whatever happened last."""
        self._drain()
        with self._lock:
            return self._tail.decode(errors="replace")

    def follow(self) -> None:
        """Hand over the new lines."""
        self._drain()
        with self._lock:
            complete = self._untaken.rfind(b"\n") + 1
            lines, left_out = bytes(self._untaken[:complete]), self._left_out
            del self._untaken[:complete]
            self._left_out = 0
        if left_out:
            self._on_line(f"{left_out} bytes of Triton's log were left out here: they were not read in time")
        for line in lines.decode(errors="replace").split("\n")[:-1]:
            self._on_line(line)

    def close(self) -> None:
        """Read what is there, hand over the last lines, and stop reading, though a process may hold the other end."""
        self._closed.set()
        self._thread.join()
        self.follow()
        os.close(self._output)
        if self._untaken:
            self._on_line(self._untaken.decode(errors="replace"))

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        while not self._closed.is_set():
            if poll.poll(_POLL_MS) and not self._drain():
                return

    def _drain(self) -> bool:
        """Take what the pipe holds; false when its other end is closed."""
        with self._lock:
            # As much as it can hold: with a flood in it, it never becomes empty.
            for _ in range(_PIPE_BYTES // _READ_BYTES):
                try:
                    data = os.read(self._output, _READ_BYTES)
                except BlockingIOError:
                    return True
                if not data:
                    return False
                self._take(data)
            return True

    def _take(self, data: bytes) -> None:
        self._file.write(data)
        self._tail += data
        del self._tail[:-_TAIL_BYTES]
        self._untaken += data
        if len(self._untaken) > _UNTAKEN_BYTES:
            # Whole lines go, the oldest first.
            excess = self._untaken.find(b"\n", len(self._untaken) - _UNTAKEN_BYTES) + 1 or len(self._untaken)
            del self._untaken[:excess]
            self._left_out += excess
