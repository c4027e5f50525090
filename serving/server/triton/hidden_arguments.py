"""Runs a command with arguments that the process list does not show. A script without packages.

Every user may read a process's arguments, and only its owner its environment. An argument ``hidden:NAME`` stands for
the value of the environment variable NAME. The command finds the value among its arguments, because these are only
pointers: between ``exec`` and its first instruction a tracer points this one at the environment. There is no moment in
which others can read the value. Where the kernel allows no tracer, the value is an argument as any other.

Usage: ``python hidden_arguments.py COMMAND [ARGUMENT ...]``. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import subprocess
import sys

_MARK = "hidden:"
_PR_SET_PTRACER = 0x59616D61
_PTRACE_PEEKDATA = 2
_PTRACE_POKEDATA = 5
_PTRACE_CONT = 7
_PTRACE_DETACH = 17
_PTRACE_GETREGSET = 0x4204
_PTRACE_SEIZE = 0x4206
_PTRACE_O_TRACEEXEC = 0x10
_PTRACE_O_EXITKILL = 0x100000
_EXEC_STOP = signal.SIGTRAP | (4 << 8)
_NT_PRSTATUS = 1
_WALL = 0x40000000
_WORD = 8
_STACK_POINTER = {"x86_64": 19, "aarch64": 31}
"""Which of the registers holds the stack pointer, in the kernel's order."""


def with_hidden_arguments(*command: str) -> list[str]:
    """The command line that runs ``command``, in which ``hidden:NAME`` stands for an environment variable's value."""
    return [sys.executable, "-I", "-S", __file__, *command]


def arguments_can_be_hidden() -> bool:
    """Whether the kernel lets this user hide the arguments of a command."""
    shows = "print(open('/proc/self/cmdline').read())"
    command = with_hidden_arguments(sys.executable, "-I", "-S", "-c", shows, hidden("ONESTREAM_TRIAL"))
    environment = {**os.environ, "ONESTREAM_TRIAL": "in the open"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode == 0 and "in the open" not in done.stdout


def hidden(name: str) -> str:
    """The argument that stands for the value of the environment variable ``name``."""
    return f"{_MARK}{name}"


def main() -> None:
    """Have a tracer wait for the ``exec``, and become the command."""
    command = sys.argv[1:]
    names = [argument.removeprefix(_MARK) for argument in command if argument.startswith(_MARK)]
    # First, so that their places are known.
    environment = {name: os.environ[name] for name in names} | dict(os.environ)
    if not _start_tracer(names):
        command = [os.environ[a.removeprefix(_MARK)] if a.startswith(_MARK) else a for a in command]
    os.execve(command[0], command, environment)


def _start_tracer(names: list[str]) -> bool:
    """Start a process that gives this one its arguments when it has called ``exec``; tell whether it can."""
    traced = os.getpid()
    ready, says = os.pipe()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)
    # A grandchild: the command must not find a child that it did not start.
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os.close(ready)
            _trace(libc, traced, names, says)
        os._exit(0)
    os.close(says)
    os.waitpid(child, 0)
    is_traced = os.read(ready, 1) == b"1"
    os.close(ready)
    return is_traced


def _trace(libc: ctypes.CDLL, pid: int, names: list[str], says: int) -> None:
    """Wait for the command's ``exec``, exchange its arguments and let it go. If this fails, the kernel kills it."""

    def ptrace(request: int, address: int, data: object) -> int:
        ctypes.set_errno(0)
        result = int(call(request, pid, ctypes.c_void_p(address), data))
        if ctypes.get_errno():
            os._exit(1)
        return result

    def peek(address: int) -> int:
        return ptrace(_PTRACE_PEEKDATA, address, None) & (1 << 8 * _WORD) - 1

    def text(address: int) -> bytes:
        found = b""
        while b"\0" not in found:
            found += peek(address + len(found)).to_bytes(_WORD, sys.byteorder)
        return found.partition(b"\0")[0]

    call = libc.ptrace
    call.restype = ctypes.c_long
    try:
        register = _STACK_POINTER.get(platform.machine())
        if register is None:
            os._exit(1)
        ptrace(_PTRACE_SEIZE, 0, ctypes.c_void_p(_PTRACE_O_TRACEEXEC | _PTRACE_O_EXITKILL))
        os.write(says, b"1")
        os.close(says)
        while True:
            status = os.waitpid(pid, _WALL)[1]
            if not os.WIFSTOPPED(status):
                os._exit(0)
            if status >> 8 == _EXEC_STOP:
                break
            ptrace(_PTRACE_CONT, 0, ctypes.c_void_p(os.WSTOPSIG(status)))
        registers = ctypes.create_string_buffer(1024)
        span = struct.Struct("PN").pack(ctypes.addressof(registers), len(registers))
        ptrace(_PTRACE_GETREGSET, _NT_PRSTATUS, ctypes.c_char_p(span))
        stack = struct.unpack_from("Q", registers, register * _WORD)[0]
        # On the stack: the number of arguments, their addresses, 0, the addresses of the environment's lines.
        count = peek(stack)
        lines = [peek(stack + (count + 2 + number) * _WORD) for number in range(len(names))]
        values = {f"{_MARK}{n}".encode(): line + len(f"{n}=") for n, line in zip(names, lines, strict=True)}
        for place in range(stack + _WORD, stack + (count + 1) * _WORD, _WORD):
            value = values.get(text(peek(place)))
            if value is not None:
                ptrace(_PTRACE_POKEDATA, place, ctypes.c_void_p(value))
        ptrace(_PTRACE_DETACH, 0, None)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
