"""Checks what this machine has and lacks for serving, and names the command that fixes each."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

from onestream.serving.errors import BadProxy
from onestream.serving.server.errors import PortInUse, TritonNotFound
from onestream.serving.server.triton.hidden_arguments import arguments_can_be_hidden
from onestream.serving.server.triton.installation import (
    EMBEDDED_PYTHONS,
    INSTALL_COMMAND,
    INSTALL_NUMPY,
    PYTHON_VERSION,
    STUB_NAME,
    TritonInstallation,
    driver_visible,
    find_libpython,
    find_triton,
    numpy_complaint,
    triton_environment,
)
from onestream.serving.server.triton.load_failures import missing_library
from onestream.serving.server.triton.orphan_cleanup import SHM_FOLDER
from onestream.serving.server.triton.ports import check_port
from onestream.serving.server.triton.private_memory import private_memory_allowed
from onestream.wire.install import install_command

OLDEST_GLIBC = (2, 35)
PYTHON_VERSIONS = ((3, 10), (3, 13))
LEAST_SHARED_MEMORY_MB = 256
IMPORT_TIMEOUT_S = 60.0
_BUILD = "onestream build pipelines/classify.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what.
        status: *ok*; *optional* is not there, or not as it might be, and not needed to serve on a CPU; *problem* keeps
            a server from working.
        found: what was seen, one line.
        fix: the command that mends it, or what to do where no command can; empty when nothing is to be done.
    """

    name: str = ""
    status: Literal["ok", "optional", "problem"]
    found: str
    fix: str = ""


def run_checks(
    *,
    repository: Path = Path("model_repository"),
    host: str = "127.0.0.1",
    ports: tuple[int, ...] = (8000, 8001, 8002),
    only: Collection[str] | None = None,
) -> list[Check]:
    """Look at everything, which takes seconds. Never raises: a check that fails unexpectedly is a problem that says so.

    Args:
        repository: the model repository that would be served.
        host: the address that would be bound.
        ports: the ports that would be bound.
        only: names of the checks to run; None runs all.
    """
    checks: dict[str, Callable[[], Check]] = {
        "Python": _python,
        "glibc": _glibc,
        "PATH": _path,
        "numpy": _numpy,
        "Triton": _triton,
        "Python backend": _stub,
        "libpython": _libpython,
        "bash": _bash,
        "DALI": partial(_package, ("nvidia-dali-cuda120", "nvidia-dali-cuda130"), "nvidia.dali.fn"),
        "numba": partial(_package, ("numba",), "numba"),
        "ONNX Runtime": partial(_package, ("onnxruntime", "onnxruntime-gpu"), "onnxruntime"),
        "ONNX": partial(_package, ("onnx",), "onnx"),
        "tritonclient": partial(_package, ("tritonclient",), "tritonclient.grpc"),
        "NVIDIA driver": _driver,
        "CUDA libraries": _cuda,
    }
    if driver_visible():
        checks |= {
            "CV-CUDA": partial(_gpu_package, ("cvcuda-cu12", "cvcuda-cu13"), "cvcuda"),
            "PyNvVideoCodec": partial(_gpu_package, ("PyNvVideoCodec",), "PyNvVideoCodec"),
            "cuda-core": partial(_gpu_package, ("cuda-core",), "cuda.core"),
            "TensorRT": partial(_gpu_package, ("tensorrt-cu13", "tensorrt-cu12", "tensorrt"), "tensorrt"),
        }
    checks |= {
        "shared memory": _shared_memory,
        "other users": _other_users,
        "cores": _cores,
        "ports": partial(_ports, host, ports),
        "model repository": partial(_repository, repository),
        "parity": partial(_parity, repository),
        "precision": partial(_precision, repository),
        "nginx": _nginx,
        "perf_analyzer": _perf_analyzer,
    }
    return [replace(_guarded(check), name=name) for name, check in checks.items() if only is None or name in only]


def _guarded(check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:  # the doctor must report on machines that nobody imagined
        return _problem(f"the check failed: {type(error).__name__}: {error}", "")


def _ok(found: str) -> Check:
    return Check(status="ok", found=found)


def _optional(found: str, fix: str) -> Check:
    return Check(status="optional", found=found, fix=fix)


def _problem(found: str, fix: str) -> Check:
    return Check(status="problem", found=found, fix=fix)


def _python() -> Check:
    versions, by = (EMBEDDED_PYTHONS, "by the embedded Triton") if _is_embedded() else (PYTHON_VERSIONS, "")
    found = f"{platform.python_version()} ({sys.executable})"
    if versions[0] <= sys.version_info[:2] <= versions[1]:
        return _ok(found)
    oldest, newest = (".".join(map(str, version)) for version in versions)
    found = f"{found}; {oldest} to {newest} are supported {by}".rstrip()
    return _problem(found, f"python{newest} -m venv .venv && .venv/bin/{INSTALL_COMMAND}")


def _glibc() -> Check:
    name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    if name == "glibc" and tuple(map(int, version.split(".")[:2])) >= OLDEST_GLIBC:
        return _ok(version)
    needed = ".".join(map(str, OLDEST_GLIBC))
    found = f"{name or 'another C library'} {version}".strip() + f"; the embedded Triton needs glibc {needed} or newer"
    fix = "use a newer system (Debian 12, Ubuntu 22.04) or Triton's container"
    return _problem(found, fix) if _is_embedded() else _optional(found, fix)


def _path() -> Check:
    """The server puts this environment first on its PATH by itself; a shell that does not is a surprise to its user."""
    folder = Path(sys.executable).parent
    first = shutil.which("python3")
    if first is not None and Path(first).parent == folder:
        return _ok(sys.prefix)
    found = f"python3 on PATH is {first or 'missing'}, not the one of {sys.prefix}; the server uses the latter"
    activate = folder / "activate"
    quoted = shlex.quote(str(activate if activate.exists() else folder))
    return _optional(found, f"source {quoted}" if activate.exists() else f"export PATH={quoted}:$PATH")


def _numpy() -> Check:
    version = _version("numpy")
    complaint = "not installed" if version is None else numpy_complaint(version)
    if complaint is not None and (version is None or _is_embedded()):
        return _problem(complaint, INSTALL_NUMPY)
    return _ok(str(version))


def _triton() -> Check:
    try:
        installation = find_triton()
    except TritonNotFound as error:
        return _problem(str(error), INSTALL_COMMAND)
    origin = {
        "given": "given",
        "path": "on PATH",
        "container": "the container's",
        "embedded": f"embedded, nvidia-pytriton {_version('nvidia-pytriton')}",
    }[installation.source]
    return _runs(installation, [str(installation.executable), "--help"], f"{origin}: {installation.executable}")


def _stub() -> Check:
    installation = find_triton()
    stub = installation.stub or installation.executable.parent.parent / "backends" / "python" / STUB_NAME
    if not stub.is_file():
        fix = f"use a Triton with a Python backend, such as the embedded one: {INSTALL_COMMAND}"
        return _problem(f"no {stub}", fix)
    if f"libpython{PYTHON_VERSION}.so".encode() not in stub.read_bytes():
        fix = "run onestream with the Python that this Triton was built for"
        return _problem(f"{stub} is for another Python than {PYTHON_VERSION}", fix)
    return _runs(installation, [str(stub)], f"for Python {PYTHON_VERSION}")


def _runs(installation: TritonInstallation, command: list[str], found: str) -> Check:
    """Start a program of Triton that ends at once, to see whether its libraries are found."""
    with tempfile.TemporaryDirectory(prefix="onestream-doctor-") as folder:
        ended = _ended(command, triton_environment(installation, Path(folder)))
    library = missing_library(ended.stderr)
    if library is None:
        return _ok(found)
    reinstall = f"{sys.executable} -m pip install --force-reinstall nvidia-pytriton"
    fix = f"apt-get install libpython{PYTHON_VERSION}" if library.startswith("libpython") else reinstall
    return _problem(f"{found}; lacks {library}", fix)


def _libpython() -> Check:
    libpython = find_libpython()
    if libpython is not None:
        return _ok(str(libpython))
    found = f"no libpython{PYTHON_VERSION}.so.1.0, which the Python backend is linked with"
    return _problem(found, f"apt-get install libpython{PYTHON_VERSION}")


def _bash() -> Check:
    found = shutil.which("bash")
    if found is not None:
        return _ok(found)
    return _problem("not found; Triton starts its Python processes with it", "apt-get install bash")


def _package(distributions: tuple[str, ...], module: str) -> Check:
    """Import a package in a process of its own: what is installed may still lack a library."""
    versions = ", ".join(f"{one} {version}" for one in distributions if (version := _version(one)) is not None)
    if not versions:
        return _problem("not installed", INSTALL_COMMAND)
    ended = _ended([sys.executable, "-c", f"import {module}"])
    if ended.returncode == 0:
        return _ok(versions)
    reason = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
    fix = f"{sys.executable} -m pip install --force-reinstall {distributions[0]}"
    return _problem(f"{versions} cannot be imported: {reason}", fix)


def _gpu_package(distributions: tuple[str, ...], module: str) -> Check:
    """A package of the GPU's forms, which a CPU does not need."""
    check = _package(distributions, module)
    fix = f"{install_command('gpu')}; TensorRT comes with Triton's container"
    return check if check.status == "ok" else _optional(check.found, fix)


def _ended(command: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
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


def _driver() -> Check:
    if not driver_visible():
        fix = "for a GPU: install its driver, and in a container run with `docker run --gpus all`"
        return _optional("no GPU visible; models run on the CPU", fix)
    version = Path("/proc/driver/nvidia/version")
    found = version.read_text().splitlines()[0] if version.exists() else "device present"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return _optional(f"{found}; {error}", "reinstall the driver")
    return _ok(found)


def _cuda() -> Check:
    found = {name: ctypes.util.find_library(name) for name in ("cudart", "nvinfer")}
    lacking = [name for name, library in found.items() if library is None]
    if not lacking:
        return _ok(", ".join(filter(None, found.values())))
    fix = "serve from Triton's container, which has them"
    return _optional(f"no lib{', no lib'.join(lacking)}; only a GPU needs them", fix)


def _shared_memory() -> Check:
    usage = shutil.disk_usage(SHM_FOLDER)
    free_mb = usage.free // 2**20
    found = f"{free_mb} MB free of {usage.total // 2**20} MB in {SHM_FOLDER}"
    if free_mb >= LEAST_SHARED_MEMORY_MB:
        return _ok(found)
    fix = "docker run --shm-size=1g …, or outside a container: mount -o remount,size=1G /dev/shm"
    return _problem(f"{found}; {LEAST_SHARED_MEMORY_MB} MB are needed", fix)


def _other_users() -> Check:
    lacking = []
    if not private_memory_allowed():
        lacking.append(f"Triton's regions lie in {SHM_FOLDER}, closed to them as soon as they are there")
    if not arguments_can_be_hidden():
        lacking.append("they can read the administration's token among Triton's arguments")
    if not lacking:
        return _ok("see neither Triton's regions nor its token")
    fix = (
        "allow user namespaces and ptrace (sysctl user.max_user_namespaces, kernel.yama.ptrace_scope), or let no "
        "other user onto this machine or into this container"
    )
    return _optional("; ".join(lacking), fix)


def _cores() -> Check:
    return _ok(f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count() or 1}")


def _ports(host: str, ports: tuple[int, ...]) -> Check:
    taken: list[int] = []
    for port in ports:
        try:
            check_port(host, port, "doctor")
        except PortInUse:
            taken.append(port)
    if not taken:
        return _ok(f"{', '.join(map(str, ports))} are free on {host}")
    found = f"{', '.join(map(str, taken))} in use on {host}, perhaps by a server that runs already"
    return _optional(found, "onestream serve --http-port 0 --grpc-port 0 --metrics-port 0")


def _repository(repository: Path) -> Check:
    models = sorted(config.parent.name for config in repository.glob("*/config.pbtxt"))
    if not models:
        return _problem(f"no models in {repository}", _BUILD)
    if not [*repository.glob("*/*/model.onnx"), *repository.glob("*/*/model.plan")]:
        return _problem(f"{repository}: the networks are not built (no model.onnx)", _BUILD)
    return _ok(f"{repository}: {', '.join(models)}")


def _parity(repository: Path) -> Check:
    """The warnings of the certificates beside the generated models, in the words that a model logs when it loads."""
    # These import NumPy, and the doctor must also run where that is missing.
    from onestream.preprocess import Definition, PreprocessError
    from onestream.serving.built import certificate

    folders = sorted(path.parent for path in repository.glob("*/definition.json"))
    if not folders:
        return _optional(f"no generated models in {repository}", _BUILD)
    warnings: list[str] = []
    for folder in folders:
        try:
            definition = Definition.from_json((folder / "definition.json").read_text(encoding="utf-8"))
            warnings += certificate.check(folder, definition, model=folder.name)
        except (PreprocessError, ValueError) as error:
            return _problem(str(error), _BUILD)
    if not warnings:
        return _ok(f"{len(folders)} models certified on these library versions")
    more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
    return _optional(f"{warnings[0]}{more}", _BUILD)


def _precision(repository: Path) -> Check:
    """Networks in int8 beside the same ones in float32, timed here: whether int8 gains depends on the processor."""
    # These import NumPy, and the doctor must also run where that is missing.
    from onestream.serving.built.here import Here, price_of
    from onestream.serving.engine.network_files import NETWORK_FILE, float_beside
    from onestream.serving.errors import BadNetwork

    timed: dict[str, Here] = {}
    for network in sorted(repository.glob(f"*_model/*/{NETWORK_FILE}")):
        if not float_beside(network).exists():
            continue
        model = network.parent.parent.name
        try:
            price = price_of(network)
            timed[model] = Here.measured(network, price, threads=price.speed.threads)
        except BadNetwork as error:
            return _problem(f"{model}: {error}", "onestream build PIPELINE --precision int8 --calibrate PHOTOS")
    if not timed:
        return _ok("every network is in float32")
    listed = "; ".join(f"{model}: {here}" for model, here in timed.items())
    if all(here.gains for here in timed.values()):
        return _ok(listed)
    found = f"{listed}, so int8 gains nothing on this processor"
    return _optional(found, "onestream build PIPELINE --precision float32")


def _nginx() -> Check:
    from onestream.serving.proxy.nginx import find_nginx  # with tritonclient's types

    try:
        return _ok(str(find_nginx()))
    except BadProxy:
        return _optional("not found; only `onestream proxy` needs it", "apt-get install nginx-light")


def _perf_analyzer() -> Check:
    found = shutil.which("perf_analyzer")
    if found is not None:
        return _ok(found)
    fix = f"{sys.executable} -m pip install perf-analyzer  (needs glibc 2.38)"
    return _optional("not on PATH; only `make bench` needs it", fix)


def _version(distribution: str) -> str | None:
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
