"""Runs a command with a /dev/shm of its own, which no other program sees. A script without packages.

It is a mount namespace of the command and all that it starts, and goes with the last of them, with everything in it.
Its limit is the size of the /dev/shm that it covers. Where the kernel does not allow this, as in most containers, the
command runs with the /dev/shm that there is.

Usage: ``python private_memory.py COMMAND [ARGUMENT ...]``. Without a command it ends with 0 where it is allowed, and
with 1 where it is not. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_NOSUID = 2
_MS_NODEV = 4
_MS_REC = 16384
_MS_SLAVE = 1 << 19
_FOLDER = "/dev/shm"
_SCRIPT = [sys.executable, "-I", "-S", __file__]


def with_private_memory(*command: str) -> list[str]:
    """The command line that runs ``command`` with a /dev/shm of its own, where that is allowed."""
    return [*_SCRIPT, *command]


def private_memory_allowed() -> bool:
    """Whether this user may have a /dev/shm of its own."""
    return subprocess.run(_SCRIPT, capture_output=True, check=False).returncode == 0


def main() -> None:
    """Try in a child first: half of it, such as a user namespace without a mount, would be worse than nothing."""
    command = sys.argv[1:]
    child = os.fork()
    if child == 0:
        try:
            _cover()
        except OSError:
            os._exit(1)
        os._exit(0)
    allowed = os.waitpid(child, 0)[1] == 0
    if not command:
        sys.exit(0 if allowed else 1)
    if allowed:
        _cover()
    os.execv(command[0], command)


def _cover() -> None:
    """Mount an empty /dev/shm over the one that there is, for this process and its children only."""
    libc = ctypes.CDLL(None, use_errno=True)
    there = os.statvfs(_FOLDER)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWNS) != 0:
        if user == 0:
            # In a user namespace of its own, root would lose the right to read other users' files.
            _raise()
        if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS) != 0:
            _raise()
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    # What the machine mounts later still comes in; nothing goes out.
    if libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None) != 0:
        _raise()
    options = f"size={there.f_blocks * there.f_frsize},mode=0700".encode()
    if libc.mount(b"tmpfs", _FOLDER.encode(), b"tmpfs", _MS_NOSUID | _MS_NODEV, options) != 0:
        _raise()


def _raise() -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
