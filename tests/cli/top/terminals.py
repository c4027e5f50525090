"""A command in a terminal of its own, and the screen as its user sees it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyte
from patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
_ALTERNATE_SCREEN = 1049 << 5  # as pyte numbers private modes


class Terminal:
    """A running command and its screen."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, slave: int, columns: int, rows: int) -> None:
        self.process = process
        self._master, self._slave = master, slave
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def lines(self) -> list[str]:
        """What stands on the screen, without empty lines at its end."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip().split("\n")

    @property
    def in_alternate_screen(self) -> bool:
        return _ALTERNATE_SCREEN in self._screen.mode

    @property
    def echoes(self) -> bool:
        """Whether the terminal shows what is typed, as it does for a shell."""
        return bool(termios.tcgetattr(self._slave)[3] & termios.ECHO)

    def read(self, seconds: float) -> None:
        """Take what the command writes for some time."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            if select.select([self._master], [], [], left_s)[0]:
                self._stream.feed(os.read(self._master, 65536))

    def wait_for(self, text: str) -> None:
        """Wait until a text is on the screen."""
        self._read_until(lambda: any(text in line for line in self.lines), f"{text!r} is not on the screen")

    def wait(self) -> int:
        """Wait until the command has ended; its exit status."""
        self._read_until(lambda: self.process.poll() is not None, "it still runs")
        self.read(0.1)
        return self.process.returncode

    def _read_until(self, condition: Callable[[], bool], complaint: str) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until_s, f"{complaint}:\n" + "\n".join(self.lines)
            self.read(0.05)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def resize(self, columns: int, rows: int) -> None:
        self._screen.resize(rows, columns)
        # A terminal that grows or shrinks shows whatever it likes until the command draws again.
        self._screen.erase_in_display(2)
        _set_size(self._slave, columns, rows)
        self.process.send_signal(signal.SIGWINCH)


@contextmanager
def terminal(*arguments: str, columns: int = 80, rows: int = 40) -> Iterator[Terminal]:
    """``onestream`` with these arguments in a terminal of this size."""
    master, slave = pty.openpty()
    _set_size(slave, columns, rows)
    hidden = ("COLUMNS", "LINES", "NO_COLOR", "TTY_COMPATIBLE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    process = subprocess.Popen(
        [sys.executable, "-m", "onestream", *arguments],
        cwd=ROOT,
        env={**environment, "TERM": "xterm-256color"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        # Ctrl-C reaches what the terminal controls.
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    try:
        yield Terminal(process, master, slave, columns, rows)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        os.close(master)
        os.close(slave)


def _set_size(descriptor: int, columns: int, rows: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
