"""What Triton, and the embedded one before all, needs of this machine, and whether it is there."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

from onestream.serving.server.errors import TritonNotFound
from onestream.serving.server.triton.installation import (
    EMBEDDED_PYTHONS,
    INSTALL_COMMAND,
    INSTALL_NUMPY,
    PYTHON_VERSION,
    STUB_NAME,
    TritonInstallation,
    find_libpython,
    find_triton,
    numpy_complaint,
    triton_environment,
)
from onestream.serving.server.triton.load_failures import missing_library

OLDEST_GLIBC = (2, 35)
PYTHON_VERSIONS = ((3, 10), (3, 13))
IMPORT_TIMEOUT_S = 60.0

Status = Literal["ok", "optional", "problem"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        status: *ok*; *optional* is not there, or not as it might be, and not needed to serve on a CPU; *problem* keeps
            a server from working.
        found: what was seen, one line.
        fix: the command that mends it, or what to do where no command can; empty when nothing is to be done.
        name: what.
    """

    status: Status
    found: str
    fix: str = ""
    name: str = ""


Look = Callable[[], Check]


def _python() -> Check:
    versions, by = (EMBEDDED_PYTHONS, "by the embedded Triton") if _is_embedded() else (PYTHON_VERSIONS, "")
    found = f"{platform.python_version()} ({sys.executable})"
    if versions[0] <= sys.version_info[:2] <= versions[1]:
        return Check("ok", found)
    oldest, newest = (".".join(map(str, version)) for version in versions)
    found = f"{found}; {oldest} to {newest} are supported {by}".rstrip()
    return Check("problem", found, f"python{newest} -m venv .venv && .venv/bin/{INSTALL_COMMAND}")


def _glibc() -> Check:
    name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    if name == "glibc" and tuple(map(int, version.split(".")[:2])) >= OLDEST_GLIBC:
        return Check("ok", version)
    needed = ".".join(map(str, OLDEST_GLIBC))
    found = f"{name or 'another C library'} {version}".strip() + f"; the embedded Triton needs glibc {needed} or newer"
    fix = "use a newer system (Debian 12, Ubuntu 22.04) or Triton's container"
    return Check("problem" if _is_embedded() else "optional", found, fix)


def _path() -> Check:
    """The server puts this environment first on its PATH by itself; a shell that does not is a surprise to its user."""
    folder, first = Path(sys.executable).parent, shutil.which("python3")
    if first is not None and Path(first).parent == folder:
        return Check("ok", sys.prefix)
    found = f"python3 on PATH is {first or 'missing'}, not the one of {sys.prefix}; the server uses the latter"
    activate = folder / "activate"
    if activate.exists():
        return Check("optional", found, f"source {shlex.quote(str(activate))}")
    return Check("optional", found, f"export PATH={shlex.quote(str(folder))}:$PATH")


def _numpy() -> Check:
    version = version_of("numpy")
    complaint = "not installed" if version is None else numpy_complaint(version)
    if complaint is not None and (version is None or _is_embedded()):
        return Check("problem", complaint, INSTALL_NUMPY)
    return Check("ok", str(version))


def _triton() -> Check:
    try:
        found = find_triton()
    except TritonNotFound as error:
        return Check("problem", str(error), INSTALL_COMMAND)
    origins = {"path": "on PATH", "container": "the container's"}
    origins["embedded"] = f"embedded, nvidia-pytriton {version_of('nvidia-pytriton')}"
    origin = origins.get(found.source, found.source)
    return _runs(found, [str(found.executable), "--help"], f"{origin}: {found.executable}")


def _python_backend() -> Check:
    found = find_triton()
    stub = found.stub or found.executable.parent.parent / "backends" / "python" / STUB_NAME
    if not stub.is_file():
        fix = f"use a Triton with a Python backend, such as the embedded one: {INSTALL_COMMAND}"
        return Check("problem", f"no {stub}", fix)
    if f"libpython{PYTHON_VERSION}.so".encode() not in stub.read_bytes():
        fix = "run onestream with the Python that this Triton was built for"
        return Check("problem", f"{stub} is for another Python than {PYTHON_VERSION}", fix)
    return _runs(found, [str(stub)], f"for Python {PYTHON_VERSION}")


def _runs(found: TritonInstallation, command: list[str], seen: str) -> Check:
    """Start a program of Triton that ends at once, to see whether its libraries are found."""
    with tempfile.TemporaryDirectory(prefix="onestream-doctor-") as folder:
        library = missing_library(ended(command, triton_environment(found, Path(folder))).stderr)
    if library is None:
        return Check("ok", seen)
    reinstall = f"{sys.executable} -m pip install --force-reinstall nvidia-pytriton"
    fix = f"apt-get install libpython{PYTHON_VERSION}" if library.startswith("libpython") else reinstall
    return Check("problem", f"{seen}; lacks {library}", fix)


def _libpython() -> Check:
    if (library := find_libpython()) is not None:
        return Check("ok", str(library))
    found = f"no libpython{PYTHON_VERSION}.so.1.0, which the Python backend is linked with"
    return Check("problem", found, f"apt-get install libpython{PYTHON_VERSION}")


def program(name: str, needed_for: str, fix: str, otherwise: Status = "optional") -> Check:
    """A program on PATH, or where Debian has those of administrators."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    return Check(otherwise, f"not found; {needed_for}", fix) if found is None else Check("ok", found)


def ended(command: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A command that has ended, with what it printed; one that takes a minute is ended."""
    return subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=IMPORT_TIMEOUT_S,
        check=False,
    )


def version_of(distribution: str) -> str | None:
    """The version of a package; None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _is_embedded() -> bool:
    """Tell whether the server would run the embedded Triton, or lacks one and would install it."""
    try:
        return find_triton().stub is not None
    except TritonNotFound:
        return True


CHECKS: dict[str, Look] = {
    "Python": _python,
    "glibc": _glibc,
    "PATH": _path,
    "numpy": _numpy,
    "Triton": _triton,
    "Python backend": _python_backend,
    "libpython": _libpython,
    "bash": partial(program, "bash", "Triton starts its Python processes with it", "apt-get install bash", "problem"),
}
