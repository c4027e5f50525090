"""Checks what this machine has and lacks for serving, and names the command that fixes each."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Literal

from onestream.serving.errors import BadProxy
from onestream.serving.server.errors import PortInUse, TritonNotFound
from onestream.serving.server.known_holes import open_holes, triton_version
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

    name: str
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
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("Python", _python),
        ("glibc", _glibc),
        ("PATH", _path),
        ("numpy", _numpy),
        ("Triton", _triton),
        ("Triton's mends", _mends),
        ("Python backend", _stub),
        ("libpython", _libpython),
        ("bash", _bash),
        ("DALI", lambda: _package("DALI", ("nvidia-dali-cuda120", "nvidia-dali-cuda130"), "nvidia.dali.fn")),
        ("numba", lambda: _package("numba", ("numba",), "numba")),
        ("ONNX Runtime", lambda: _package("ONNX Runtime", ("onnxruntime", "onnxruntime-gpu"), "onnxruntime")),
        ("ONNX", lambda: _package("ONNX", ("onnx",), "onnx")),
        ("tritonclient", lambda: _package("tritonclient", ("tritonclient",), "tritonclient.grpc")),
        ("NVIDIA driver", _driver),
        ("CUDA libraries", _cuda),
        *(_gpu_packages() if driver_visible() else []),
        ("shared memory", _shared_memory),
        ("other users", _other_users),
        ("cores", _cores),
        ("ports", lambda: _ports(host, ports)),
        ("model repository", lambda: _repository(repository)),
        ("parity", lambda: _parity(repository)),
        ("precision", lambda: _precision(repository)),
        ("nginx", _nginx),
        ("perf_analyzer", _perf_analyzer),
    ]
    return [_guarded(name, check) for name, check in checks if only is None or name in only]


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:  # the doctor must report on machines that nobody imagined
        return Check(name=name, status="problem", found=f"the check failed: {type(error).__name__}: {error}")


def _python() -> Check:
    versions, by = (EMBEDDED_PYTHONS, "by the embedded Triton") if _is_embedded() else (PYTHON_VERSIONS, "")
    found = f"{platform.python_version()} ({sys.executable})"
    if versions[0] <= sys.version_info[:2] <= versions[1]:
        return Check(name="Python", status="ok", found=found)
    oldest, newest = (".".join(map(str, version)) for version in versions)
    found = f"{found}; {oldest} to {newest} are supported {by}".rstrip()
    fix = f"python{newest} -m venv .venv && .venv/bin/{INSTALL_COMMAND}"
    return Check(name="Python", status="problem", found=found, fix=fix)


def _glibc() -> Check:
    name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    needed = ".".join(map(str, OLDEST_GLIBC))
    if name == "glibc" and tuple(map(int, version.split(".")[:2])) >= OLDEST_GLIBC:
        return Check(name="glibc", status="ok", found=version)
    found = f"{name or 'another C library'} {version}".strip()
    return Check(
        name="glibc",
        status="problem" if _is_embedded() else "optional",
        found=f"{found}; the embedded Triton needs glibc {needed} or newer",
        fix="use a newer system (Debian 12, Ubuntu 22.04) or Triton's container",
    )


def _path() -> Check:
    """The server puts this environment first on its PATH by itself; a shell that does not is a surprise to its user."""
    folder = Path(sys.executable).parent
    first = shutil.which("python3")
    if first is not None and Path(first).parent == folder:
        return Check(name="PATH", status="ok", found=sys.prefix)
    activate = folder / "activate"
    return Check(
        name="PATH",
        status="optional",
        found=f"python3 on PATH is {first or 'missing'}, not the one of {sys.prefix}; the server uses the latter",
        fix=f"source {activate}" if activate.exists() else f"export PATH={folder}:$PATH",
    )


def _numpy() -> Check:
    version = _version("numpy")
    if version is None:
        return Check(name="numpy", status="problem", found="not installed", fix=INSTALL_NUMPY)
    complaint = numpy_complaint(version)
    if complaint is not None and _is_embedded():
        return Check(name="numpy", status="problem", found=complaint, fix=INSTALL_NUMPY)
    return Check(name="numpy", status="ok", found=version)


def _triton() -> Check:
    try:
        installation = find_triton()
    except TritonNotFound as error:
        return Check(name="Triton", status="problem", found=str(error), fix=INSTALL_COMMAND)
    origin = {
        "given": "given",
        "path": "on PATH",
        "container": "the container's",
        "embedded": f"embedded, nvidia-pytriton {_version('nvidia-pytriton')}",
    }[installation.source]
    return _runs(
        "Triton", installation, [str(installation.executable), "--help"], f"{origin}: {installation.executable}"
    )


def _mends() -> Check:
    """The known holes of this Triton, by its version."""
    version = triton_version(find_triton())
    if version is None:
        return Check(
            name="Triton's mends",
            status="optional",
            found="this Triton does not say its version",
            fix="compare its release with docs/operations.md, Known holes of Triton",
        )
    name = ".".join(map(str, version))
    holes = open_holes(version)
    if not holes:
        return Check(name="Triton's mends", status="ok", found=f"{name} has all that were known in August 2026")
    tried = [hole.what for hole in holes if hole.bulletin is None]
    bulletins = [str(hole.bulletin) for hole in holes if hole.bulletin is not None]
    listed = f"NVIDIA's bulletins {', '.join(bulletins)}"
    return Check(
        name="Triton's mends",
        status="optional",
        found=f"{name} lacks those of {'; '.join([*tried, listed])}",
        fix="let callers in through `onestream proxy` with tokens only, which refuses most of these; web pages reach "
        "the bare HTTP port (docs/operations.md, Known holes of Triton)",
    )


def _stub() -> Check:
    installation = find_triton()
    stub = installation.stub or installation.executable.parent.parent / "backends" / "python" / STUB_NAME
    if not stub.is_file():
        return Check(
            name="Python backend",
            status="problem",
            found=f"no {stub}",
            fix=f"use a Triton with a Python backend, such as the embedded one: {INSTALL_COMMAND}",
        )
    if f"libpython{PYTHON_VERSION}.so".encode() not in stub.read_bytes():
        return Check(
            name="Python backend",
            status="problem",
            found=f"{stub} is for another Python than {PYTHON_VERSION}",
            fix="run onestream with the Python that this Triton was built for",
        )
    return _runs("Python backend", installation, [str(stub)], f"for Python {PYTHON_VERSION}")


def _runs(name: str, installation: TritonInstallation, command: list[str], found: str) -> Check:
    """Start a program of Triton that ends at once, to see whether its libraries are found."""
    with tempfile.TemporaryDirectory(prefix="onestream-doctor-") as folder:
        ended = subprocess.run(
            command,
            env=triton_environment(installation, Path(folder)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=IMPORT_TIMEOUT_S,
            check=False,
        )
    library = missing_library(ended.stderr)
    if library is None:
        return Check(name=name, status="ok", found=found)
    fix = (
        f"apt-get install libpython{PYTHON_VERSION}"
        if library.startswith("libpython")
        else f"{sys.executable} -m pip install --force-reinstall nvidia-pytriton"
    )
    return Check(name=name, status="problem", found=f"{found}; lacks {library}", fix=fix)


def _libpython() -> Check:
    libpython = find_libpython()
    if libpython is not None:
        return Check(name="libpython", status="ok", found=str(libpython))
    return Check(
        name="libpython",
        status="problem",
        found=f"no libpython{PYTHON_VERSION}.so.1.0, which the Python backend is linked with",
        fix=f"apt-get install libpython{PYTHON_VERSION}",
    )


def _bash() -> Check:
    found = shutil.which("bash")
    if found is not None:
        return Check(name="bash", status="ok", found=found)
    return Check(
        name="bash",
        status="problem",
        found="not found; Triton starts its Python processes with it",
        fix="apt-get install bash",
    )


def _package(name: str, distributions: tuple[str, ...], module: str) -> Check:
    """Import a package in a process of its own: what is installed may still lack a library."""
    versions = [f"{d} {version}" for d in distributions if (version := _version(d)) is not None]
    if not versions:
        return Check(name=name, status="problem", found="not installed", fix=INSTALL_COMMAND)
    ended = subprocess.run(
        [sys.executable, "-c", f"import {module}"],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=IMPORT_TIMEOUT_S,
        check=False,
    )
    if ended.returncode == 0:
        return Check(name=name, status="ok", found=", ".join(versions))
    reason = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
    fix = f"{sys.executable} -m pip install --force-reinstall {distributions[0]}"
    return Check(name=name, status="problem", found=f"{', '.join(versions)} cannot be imported: {reason}", fix=fix)


def _gpu_packages() -> list[tuple[str, Callable[[], Check]]]:
    """Checks of what the GPU's forms need, none of which a CPU misses."""

    def optional(name: str, distributions: tuple[str, ...], module: str) -> Check:
        check = _package(name, distributions, module)
        fix = f"{install_command('gpu')}; TensorRT comes with Triton's container"
        return check if check.status == "ok" else replace(check, status="optional", fix=fix)

    return [
        ("CV-CUDA", lambda: optional("CV-CUDA", ("cvcuda-cu12", "cvcuda-cu13"), "cvcuda")),
        ("PyNvVideoCodec", lambda: optional("PyNvVideoCodec", ("PyNvVideoCodec",), "PyNvVideoCodec")),
        ("cuda-core", lambda: optional("cuda-core", ("cuda-core",), "cuda.core")),
        ("TensorRT", lambda: optional("TensorRT", ("tensorrt-cu13", "tensorrt-cu12", "tensorrt"), "tensorrt")),
    ]


def _driver() -> Check:
    if not driver_visible():
        return Check(
            name="NVIDIA driver",
            status="optional",
            found="no GPU visible; models run on the CPU",
            fix="for a GPU: install its driver, and in a container run with `docker run --gpus all`",
        )
    version = Path("/proc/driver/nvidia/version")
    found = version.read_text().splitlines()[0] if version.exists() else "device present"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return Check(name="NVIDIA driver", status="optional", found=f"{found}; {error}", fix="reinstall the driver")
    return Check(name="NVIDIA driver", status="ok", found=found)


def _cuda() -> Check:
    found = {name: ctypes.util.find_library(name) for name in ("cudart", "nvinfer")}
    lacking = [name for name, library in found.items() if library is None]
    if not lacking:
        return Check(name="CUDA libraries", status="ok", found=", ".join(filter(None, found.values())))
    return Check(
        name="CUDA libraries",
        status="optional",
        found=f"no lib{', no lib'.join(lacking)}; only a GPU needs them",
        fix="serve from Triton's container, which has them",
    )


def _shared_memory() -> Check:
    usage = shutil.disk_usage(SHM_FOLDER)
    free_mb = usage.free // 2**20
    found = f"{free_mb} MB free of {usage.total // 2**20} MB in {SHM_FOLDER}"
    if free_mb >= LEAST_SHARED_MEMORY_MB:
        return Check(name="shared memory", status="ok", found=found)
    return Check(
        name="shared memory",
        status="problem",
        found=f"{found}; {LEAST_SHARED_MEMORY_MB} MB are needed",
        fix="docker run --shm-size=1g …, or outside a container: mount -o remount,size=1G /dev/shm",
    )


def _other_users() -> Check:
    lacking = []
    if not private_memory_allowed():
        lacking.append(f"Triton's regions lie in {SHM_FOLDER}, closed to them as soon as they are there")
    if not arguments_can_be_hidden():
        lacking.append("they can read the administration's token among Triton's arguments")
    if not lacking:
        return Check(name="other users", status="ok", found="see neither Triton's regions nor its token")
    return Check(
        name="other users",
        status="optional",
        found="; ".join(lacking),
        fix="allow user namespaces and ptrace (sysctl user.max_user_namespaces, kernel.yama.ptrace_scope), or let no "
        "other user onto this machine or into this container",
    )


def _cores() -> Check:
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    return Check(name="cores", status="ok", found=f"{usable} usable of {present}")


def _ports(host: str, ports: tuple[int, ...]) -> Check:
    taken: list[int] = []
    for port in ports:
        try:
            check_port(host, port, "doctor")
        except PortInUse:
            taken.append(port)
    if not taken:
        return Check(name="ports", status="ok", found=f"{', '.join(map(str, ports))} are free on {host}")
    return Check(
        name="ports",
        status="optional",
        found=f"{', '.join(map(str, taken))} in use on {host}, perhaps by a server that runs already",
        fix="onestream serve --http-port 0 --grpc-port 0 --metrics-port 0",
    )


def _repository(repository: Path) -> Check:
    build = "onestream build pipelines/classify.yaml"
    models = sorted(config.parent.name for config in repository.glob("*/config.pbtxt"))
    if not models:
        return Check(name="model repository", status="problem", found=f"no models in {repository}", fix=build)
    networks = [*repository.glob("*/*/model.onnx"), *repository.glob("*/*/model.plan")]
    if not networks:
        found = f"{repository}: the networks are not built (no model.onnx)"
        return Check(name="model repository", status="problem", found=found, fix=build)
    return Check(name="model repository", status="ok", found=f"{repository}: {', '.join(models)}")


def _parity(repository: Path) -> Check:
    """The warnings of the certificates beside the generated models, in the words that a model logs when it loads."""
    # These import NumPy, and the doctor must also run where that is missing.
    from onestream.preprocess import Definition, PreprocessError
    from onestream.serving.building import certificate

    build = "onestream build pipelines/classify.yaml"
    folders = sorted(path.parent for path in repository.glob("*/definition.json"))
    if not folders:
        return Check(name="parity", status="optional", found=f"no generated models in {repository}", fix=build)
    warnings: list[str] = []
    for folder in folders:
        try:
            definition = Definition.from_json((folder / "definition.json").read_text(encoding="utf-8"))
            warnings += certificate.check(folder, definition, model=folder.name)
        except (PreprocessError, ValueError) as error:
            return Check(name="parity", status="problem", found=str(error), fix=build)
    if not warnings:
        return Check(name="parity", status="ok", found=f"{len(folders)} models certified on these library versions")
    more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
    return Check(name="parity", status="optional", found=f"{warnings[0]}{more}", fix=build)


def _precision(repository: Path) -> Check:
    """Networks in int8 beside the same ones in float32, timed here: whether int8 gains depends on the processor."""
    # These import NumPy, and the doctor must also run where that is missing.
    from onestream.serving.building.quantization.here import Here, price_of
    from onestream.serving.engine.network_files import NETWORK_FILE, float_beside
    from onestream.serving.errors import BadNetwork

    again = "onestream build PIPELINE --precision int8 --calibrate PHOTOS"
    timed: dict[str, Here] = {}
    for network in sorted(repository.glob(f"*_model/*/{NETWORK_FILE}")):
        if not float_beside(network).exists():
            continue
        model = network.parent.parent.name
        try:
            price = price_of(network)
            timed[model] = Here.measured(network, price, threads=price.speed.threads)
        except BadNetwork as error:
            return Check(name="precision", status="problem", found=f"{model}: {error}", fix=again)
    if not timed:
        return Check(name="precision", status="ok", found="every network is in float32")
    slower = [model for model, here in timed.items() if not here.gains]
    listed = "; ".join(f"{model}: {here}" for model, here in timed.items())
    if not slower:
        return Check(name="precision", status="ok", found=listed)
    return Check(
        name="precision",
        status="optional",
        found=f"{listed}, so int8 gains nothing on this processor",
        fix="onestream build PIPELINE --precision float32",
    )


def _nginx() -> Check:
    from onestream.serving.proxy.nginx import find_nginx  # with tritonclient's types

    try:
        return Check(name="nginx", status="ok", found=str(find_nginx()))
    except BadProxy:
        found = "not found; only `onestream proxy` needs it"
        return Check(name="nginx", status="optional", found=found, fix="apt-get install nginx-light")


def _perf_analyzer() -> Check:
    found = shutil.which("perf_analyzer")
    if found is not None:
        return Check(name="perf_analyzer", status="ok", found=found)
    return Check(
        name="perf_analyzer",
        status="optional",
        found="not on PATH; only `make bench` needs it",
        fix=f"{sys.executable} -m pip install perf-analyzer  (needs glibc 2.38)",
    )


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
