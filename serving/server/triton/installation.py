"""Finds tritonserver on this machine, and makes its command line and environment."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onestream.serving.server.errors import TritonNotFound
from onestream.serving.server.tracing import Tracing
from onestream.serving.server.triton.hidden_arguments import hidden
from onestream.wire.install import install_command

Device = Literal["auto", "cpu", "gpu"]

INSTALL_COMMAND = install_command("cpu")
INSTALL_NUMPY = f"{sys.executable} -m pip install 'numpy>=1.26,<2'"
CONTAINER_EXECUTABLE = Path("/opt/tritonserver/bin/tritonserver")
STUB_NAME = "triton_python_backend_stub"
OWN_STUB = Path(sys.prefix) / "libexec" / STUB_NAME
"""Where ``make install-numpy2`` puts a process for Python models that reads NumPy 2 arrays, unlike the wheel's."""
PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
EMBEDDED_PYTHONS = ((3, 10), (3, 12))
"""First and last Python of the embedded Triton: it reads NumPy 1 arrays, and NumPy 1 has no wheels for Python 3.13."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonInstallation:
    """A tritonserver and the folders it needs beside it.

    Attributes:
        executable: the tritonserver binary.
        source: where it was found: *given*, *path*, *container*, or *embedded* (the wheel nvidia-pytriton).
        backends: folder of backends; None leaves Triton's own default.
        caches: folder of response caches; None leaves Triton's own default.
        libraries: folder of the shared libraries that came with it; None where the system has them.
        stub: the Python backend's process for this Python version, where the installation has one for each version;
            None leaves the one in the backend's folder.
    """

    executable: Path
    source: Literal["given", "path", "container", "embedded"]
    backends: Path | None = None
    caches: Path | None = None
    libraries: Path | None = None
    stub: Path | None = None


def find_triton(executable: Path | None = None) -> TritonInstallation:
    """Find tritonserver: the given one, else on PATH, else the container's, else the embedded wheel's.

    Args:
        executable: a tritonserver binary to use instead of searching.

    Raises:
        TritonNotFound: there is none, or the embedded one does not support the running Python version.
    """
    if executable is not None:
        if not (executable.is_file() and os.access(executable, os.X_OK)):
            raise TritonNotFound(f"{executable} is not an executable file; give the path of a tritonserver binary")
        return _installation(executable.resolve(), "given")
    on_path = shutil.which("tritonserver")
    if on_path is not None:
        return _installation(Path(on_path).resolve(), "path")
    if CONTAINER_EXECUTABLE.is_file():
        return _installation(CONTAINER_EXECUTABLE, "container")
    package = importlib.util.find_spec("pytriton")
    if package is not None and package.origin is not None:
        embedded = Path(package.origin).parent / "tritonserver" / "bin" / "tritonserver"
        if embedded.is_file():
            return _installation(embedded, "embedded")
    none = "no tritonserver on PATH, in /opt/tritonserver or in this Python environment"
    oldest, newest = EMBEDDED_PYTHONS
    if not oldest <= sys.version_info[:2] <= newest:
        raise TritonNotFound(
            f"{none}; the one that {INSTALL_COMMAND} brings needs Python {'.'.join(map(str, oldest))} to "
            f"{'.'.join(map(str, newest))}, and this is {PYTHON_VERSION}: make the environment with one of these"
        )
    raise TritonNotFound(f"{none}; run: {INSTALL_COMMAND}")


def _installation(executable: Path, source: Literal["given", "path", "container", "embedded"]) -> TritonInstallation:
    """Describe the installation around an executable; the wheel's layout is known by its stubs."""
    root = executable.parent.parent
    stubs = root / "python_backend_stubs"
    if not stubs.is_dir():
        return TritonInstallation(executable=executable, source=source)
    stub = stubs / PYTHON_VERSION / STUB_NAME
    if not stub.is_file():
        supported = ", ".join(sorted((p.name for p in stubs.iterdir()), key=lambda v: tuple(map(int, v.split(".")))))
        raise TritonNotFound(
            f"the embedded Triton has no Python backend for Python {PYTHON_VERSION}, only for {supported}; "
            "make the environment with one of these"
        )
    return TritonInstallation(
        executable=executable,
        source=source,
        backends=root / "backends",
        caches=root / "caches",
        libraries=root.parent.parent / "nvidia_pytriton.libs",
        stub=OWN_STUB if OWN_STUB.is_file() else stub,
    )


def numpy_complaint(version: str) -> str | None:
    """Why the embedded Triton cannot work with this version of NumPy; None where it can."""
    if int(version.partition(".")[0]) < 2 or OWN_STUB.is_file():
        return None
    return f"{version}; the embedded Triton reads wrong values from numpy 2 before `make install-numpy2`"


def driver_visible() -> bool:
    """Whether an NVIDIA kernel driver offers a device to this process."""
    # Only when asked: the command line must not wait for what preprocessing imports.
    from onestream.preprocess.cuda.device import driver_visible as visible

    return visible()


def gpus_visible() -> int:
    """How many GPUs the kernel driver offers to this process, of which CUDA may use fewer."""
    return max(len(list(Path("/dev").glob("nvidia[0-9]*"))), int(driver_visible()))


def resolve_device(device: Device, installation: TritonInstallation) -> Literal["cpu", "gpu"]:
    """Turn *auto* into *gpu* where a driver is visible and this Triton has GPU backends, else into *cpu*.

    The embedded Triton carries the Python backend only, so there *auto* is always *cpu*.
    """
    if device != "auto":
        return device
    return "gpu" if installation.stub is None and driver_visible() else "cpu"


def find_libpython() -> Path | str | None:
    """Find the shared library of the running Python, which the Python backend's process is linked with.

    Returns:
        Its path beside this Python, or its bare name where the system's loader finds it by itself, or None.
    """
    file_name = f"libpython{PYTHON_VERSION}.so.1.0"
    for folder in (sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib"):
        if folder and (Path(folder) / file_name).is_file():
            return Path(folder) / file_name
    return ctypes.util.find_library(f"python{PYTHON_VERSION}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where a server listens. ``host`` is an address to bind; each port is 1 to 65535."""

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int

    @property
    def ports(self) -> dict[str, int]:
        """Port by service: *http*, *grpc*, *metrics*."""
        return {"http": self.http_port, "grpc": self.grpc_port, "metrics": self.metrics_port}

    @property
    def reachable_host(self) -> str:
        """The host to connect to from this machine, fit for a URL: every address means loopback."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        return f"[{host}]" if ":" in host else host


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonCommand:
    """A command line, for ``onestream.serving.server.triton.hidden_arguments``, and the environment to run it in."""

    arguments: tuple[str, ...]
    environment: dict[str, str]


def triton_command(
    installation: TritonInstallation,
    *,
    repository: Path,
    endpoints: Endpoints,
    device: Literal["cpu", "gpu"],
    models: Sequence[str] = ("*",),
    shared_memory: bool = False,
    run_folder: Path,
    region_prefix: str,
    admin_token: str,
    exit_timeout_s: int,
    one_by_one: bool = False,
    flags: Sequence[str] = (),
    tracing: Tracing | None = None,
) -> TritonCommand:
    """Make the command that runs Triton, and fill ``run_folder`` with the links that the command names.

    Args:
        installation: which Triton.
        repository: folder of models.
        endpoints: addresses of the three services.
        device: *cpu* makes Triton read ``configs/cpu.pbtxt`` of every model that has one.
        models: names to load at the start; ``"*"`` loads all.
        shared_memory: callers may register regions of shared memory. Without it that needs the token too: a region is
            named by its key alone, so that any caller could make Triton read and write whatever its user may.
        run_folder: an empty folder, without spaces in its path, that lives as long as the server.
        region_prefix: prefix of the names in /dev/shm.
        admin_token: what a caller must present to load and unload models, or to change logging and tracing. Loading
            takes a model's code from the request, so a caller who may load may run anything.
        exit_timeout_s: seconds that Triton waits for running requests when it is told to stop.
        one_by_one: load one model after the other, not several at once.
        flags: arguments that come last.
        tracing: which requests are traced, and where their spans go; None traces none.
    """
    repository = repository.resolve()
    if re.search(r"[^\w./+@%=:,-]", str(repository)):
        # Triton starts its Python processes through a shell and does not quote their arguments.
        repository = _link(run_folder / "repository", repository)
    closed = ["model-repository", "trace", "logging", *([] if shared_memory else ["shared-memory"])]
    restricted = f"{','.join(closed)}:{ADMIN_HEADER}={admin_token}"
    secrets = {
        "ONESTREAM_CLOSED_HTTP": f"--http-restricted-api={restricted}",
        "ONESTREAM_CLOSED_GRPC": f"--grpc-restricted-protocol={restricted}",
    }
    arguments = [
        str(_executable(installation, run_folder)),
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in models),
        # Failures are read from the model index, all of them, instead of the first one from the log.
        "--exit-on-error=false",
        # The generated configurations are complete, and completing them costs a second process start per model.
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={exit_timeout_s}",
        # Kept for reuse, a request keeps the memory of the largest that it ever was; a stream that is given up takes
        # such a one with it for ever.
        "--grpc-infer-allocation-pool-size=0",
        f"--http-address={endpoints.host}",
        f"--http-port={endpoints.http_port}",
        f"--grpc-address={endpoints.host}",
        f"--grpc-port={endpoints.grpc_port}",
        f"--metrics-address={endpoints.host}",
        f"--metrics-port={endpoints.metrics_port}",
        *(hidden(name) for name in secrets),
        f"--backend-config=python,shm-region-prefix-name={region_prefix}",
    ]
    if one_by_one:
        arguments.append("--model-load-thread-count=1")
    if tracing is not None:
        arguments.extend(tracing.arguments())
    if device == "cpu":
        arguments.append("--model-config-name=cpu")
    else:
        # Only when asked, as ``driver_visible``.
        from onestream.serving.built.memory_pool import configs_in, pools, triton_flags

        arguments.extend(triton_flags(pools(configs_in(repository)), gpus=gpus_visible()))
    if installation.backends is not None:
        arguments.append(f"--backend-directory={_assemble_backends(installation, run_folder / 'backends')}")
    if installation.caches is not None:
        arguments.append(f"--cache-directory={installation.caches}")
    arguments.extend(flags)
    environment = triton_environment(installation, run_folder) | secrets
    if installation.stub is not None:
        environment |= _ALLOCATOR
    if tracing is not None:
        environment |= tracing.environment(environment)
    return TritonCommand(arguments=tuple(arguments), environment=environment)


ADMIN_HEADER = "onestream-admin"

_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(256 * 1024), "MALLOC_TRIM_THRESHOLD_": str(128 * 1024)}
"""With these the embedded tritonserver gives the memory of large bodies back to the system. By default glibc adapts to
them, and small things that live on keep ever more of that memory: 2,500 bodies of 1 KB to 10 MB left 198 MiB, with
these 18. Model processes, whose arrays are made anew for each batch, go without."""

_STACK_KB, _USUAL_STACK_KB = 256 * 1024, 8 * 1024
# Triton 2.51 keeps a whole form, 16 bytes for each chunk, and a frame for each nested bracket of a body on the stack of
# a thread. The usual 8 MB end at 4.5 MB of a form; these at 32 times that, and only what is used takes memory.
_DEEP_STACKS = f'ulimit -S -s {_STACK_KB} 2>/dev/null || ulimit -S -s "$(ulimit -H -s)"; exec "$@"'


def with_deep_stacks(*command: str) -> list[str]:
    """The command line that runs ``command`` with stacks of 256 MB, or as large as this user may have them."""
    return ["/bin/sh", "-c", _DEEP_STACKS, "sh", *command]


_ERROR_MODE = b"triton_grpc_error"


def _executable(installation: TritonInstallation, run_folder: Path) -> Path:
    """The tritonserver to run: of the embedded one a copy that does not know the metadata ``triton_grpc_error``.

    Where a stream has it, tritonserver 2.51 dies of an error that is answered while more of the stream's requests are
    on their way. In the copy the name is in capitals, and on the wire names are in lower case (RFC 9113, 8.2.1).
    """
    if installation.stub is None:
        return installation.executable
    # As deep as the wheel's, since its RPATH leads three folders up.
    copy = run_folder / "embedded" / "tritonserver" / "bin" / installation.executable.name
    copy.parent.mkdir(parents=True)
    copy.write_bytes(installation.executable.read_bytes().replace(_ERROR_MODE, _ERROR_MODE.upper()))
    copy.chmod(0o755)
    return copy


def _assemble_backends(installation: TritonInstallation, folder: Path) -> Path:
    """Make a folder of backends whose Python backend holds the process for the running Python version."""
    assert installation.backends is not None
    for backend in installation.backends.iterdir():
        (folder / backend.name).mkdir(parents=True)
        for file in backend.iterdir():
            _link(folder / backend.name / file.name, file)
    if installation.stub is not None:
        # No link: Triton changes the mode of a stub that does not start.
        own = folder / "python" / STUB_NAME
        unset = " ".join(_ALLOCATOR)
        usual = f"ulimit -S -s {_USUAL_STACK_KB} 2>/dev/null; unset {unset}"
        own.write_text(f'#!/bin/sh\n{usual}\nexec {shlex.quote(str(installation.stub))} "$@"\n')
        own.chmod(0o755)
    return folder


def triton_environment(installation: TritonInstallation, run_folder: Path) -> dict[str, str]:
    """Make the environment in which Triton and its model processes find their libraries and packages.

    Args:
        installation: which Triton.
        run_folder: an empty folder for links, that lives as long as the processes.
    """
    environment = dict(os.environ)
    # The Python backend takes its packages from the python3 found first on PATH.
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
    folders = [] if installation.libraries is None else [str(installation.libraries)]
    libpython = find_libpython()
    if isinstance(libpython, Path):
        # Linked alone, so that nothing else in Python's folder comes before the system's libraries.
        link = run_folder / "lib" / libpython.name
        link.parent.mkdir()
        folders.append(str(_link(link, libpython).parent))
    folders.extend(filter(None, [environment.get("LD_LIBRARY_PATH")]))
    if folders:
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(folders)
    return environment


def _link(link: Path, target: Path) -> Path:
    link.symlink_to(target)
    return link
