"""Checks what this machine has and lacks for serving, and names the command that fixes each."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import shutil
import sys
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from importlib import metadata
from itertools import combinations
from pathlib import Path

from onestream.serving.server.errors import PortInUse
from onestream.serving.server.triton.health import CHECKS, Check, Look, ended, program, version_of
from onestream.serving.server.triton.hidden_arguments import arguments_can_be_hidden
from onestream.serving.server.triton.installation import INSTALL_COMMAND, driver_visible
from onestream.serving.server.triton.orphan_cleanup import SHM_FOLDER
from onestream.serving.server.triton.ports import check_port
from onestream.serving.server.triton.private_memory import private_memory_allowed
from onestream.wire.install import install_command

LEAST_SHARED_MEMORY_MB = 256
_BUILD = "onestream build pipelines/classify.yaml"


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
    perf_analyzer = f"{sys.executable} -m pip install perf-analyzer  (needs glibc 2.38)"
    checks: dict[str, Look] = {
        **CHECKS,
        **_packages(),
        "NVIDIA driver": _driver,
        "CUDA libraries": _cuda,
        "GPU memory": partial(_gpu_memory, repository),
        "shared memory": _shared_memory,
        "other users": _other_users,
        "cores": lambda: Check("ok", f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count() or 1}"),
        "ports": partial(_ports, host, ports),
        "model repository": partial(_repository, repository),
        "parity": partial(_parity, repository),
        "precision": partial(_precision, repository),
        "nginx": partial(program, "nginx", "only `onestream proxy` needs it", "apt-get install nginx-light"),
        "perf_analyzer": partial(program, "perf_analyzer", "only `make bench` needs it", perf_analyzer),
    }
    return [replace(_guarded(check), name=name) for name, check in checks.items() if only is None or name in only]


def _guarded(check: Look) -> Check:
    try:
        return check()
    except Exception as error:  # on any machine there is a report
        return Check("problem", f"the check failed: {type(error).__name__}: {error}")


def _packages() -> dict[str, Look]:
    """The packages of backends, engines and what is around them; those for a GPU only where there is a driver."""
    try:
        from onestream.preprocess.backends.table import BACKENDS
        from onestream.serving.engine.table import CPU_ENGINES, ENGINES
        from onestream.serving.pipeline import CpuOptions
    except ImportError as error:  # such as of NumPy
        return {"packages": partial(Check, "problem", f"not all can be imported: {error}", INSTALL_COMMAND)}
    backends, engine = BACKENDS.values(), CPU_ENGINES[CpuOptions().engine]
    packages = {
        **{row.title: (row.distributions, row.module) for row in backends if "cpu" in row.devices},
        engine.title: (engine.distributions, engine.module),
        "numba": (("numba",), "numba"),
        "ONNX": (("onnx",), "onnx"),
        "tritonclient": (("tritonclient",), "tritonclient.grpc"),
    }
    for_gpu = {
        **{row.title: (row.distributions, row.module) for row in backends if "cpu" not in row.devices},
        **{row.title: (row.distributions, row.module) for name, row in ENGINES.items() if name not in CPU_ENGINES},
        "PyNvVideoCodec": (("PyNvVideoCodec",), "PyNvVideoCodec"),
        "cuda-core": (("cuda-core",), "cuda.core"),
    }
    looks: dict[str, Look] = {name: partial(_package, *package) for name, package in packages.items()}
    if driver_visible():
        looks |= {name: partial(_gpu_package, *package) for name, package in for_gpu.items()}
    return looks


def _package(distributions: tuple[str, ...], module: str) -> Check:
    """Import a package in a process of its own: what is installed may still lack a library."""
    installed = [one for one in distributions if version_of(one) is not None]
    if not installed:
        return Check("problem", "not installed", INSTALL_COMMAND)
    versions = ", ".join(f"{one} {version_of(one)}" for one in installed)
    if _share_files(installed):
        fix = f"{sys.executable} -m pip uninstall {' '.join(installed)}; then install the one for this machine"
        return Check("problem", f"{versions} hold the same files, and the last one replaced the other's", fix)
    done = ended([sys.executable, "-c", f"import {module}"])
    if done.returncode == 0:
        return Check("ok", versions)
    reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    fix = f"{sys.executable} -m pip install --force-reinstall {distributions[0]}"
    return Check("problem", f"{versions} cannot be imported: {reason}", fix)


def _share_files(distributions: list[str]) -> bool:
    held = [{str(file) for file in metadata.files(one) or ()} for one in distributions]
    return any(one & other for one, other in combinations(held, 2))


def _gpu_package(distributions: tuple[str, ...], module: str) -> Check:
    """A package of the GPU's forms, which a CPU does not need."""
    check = _package(distributions, module)
    fix = f"{install_command('gpu')}; TensorRT comes with Triton's container"
    return check if check.status == "ok" else Check("optional", check.found, fix)


def _driver() -> Check:
    if not driver_visible():
        fix = "for a GPU: install its driver, and in a container run with `docker run --gpus all`"
        return Check("optional", "no GPU visible; models run on the CPU", fix)
    version = Path("/proc/driver/nvidia/version")
    found = version.read_text().splitlines()[0] if version.exists() else "device present"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return Check("optional", f"{found}; {error}", "reinstall the driver")
    return Check("ok", found)


def _cuda() -> Check:
    found = {name: ctypes.util.find_library(name) for name in ("cudart", "nvinfer")}
    if lacking := [name for name, library in found.items() if library is None]:
        fix = "serve from Triton's container, which has them"
        return Check("optional", f"no lib{', no lib'.join(lacking)}; only a GPU needs them", fix)
    return Check("ok", ", ".join(filter(None, found.values())))


def _gpu_memory(repository: Path) -> Check:
    """Whether a GPU has the memory in which pixels wait for networks, beside the networks."""
    from onestream.serving.built.memory_pool import configs_in, largest, pools, unbounded

    configs = configs_in(repository)
    wanted = pools(configs)
    if not wanted:
        return Check("ok", "nothing waits in it between the models of this repository")
    found = f"{largest(wanted) >> 20} MB of each GPU are set aside for pictures that wait"
    lines: list[str] = []
    if driver_visible() and shutil.which("nvidia-smi"):
        lines = ended(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]).stdout.split()
    totals = [int(line) for line in lines if line.isdigit()]
    found += f", of {min(totals)} MB" if totals else "; how much it has cannot be seen here"
    if totals and largest(wanted) >> 20 > min(totals) // 2:
        fix = "a smaller serving.gpu.max_queue_size or max_batch_size, or fewer pipelines on one GPU; then build again"
        return Check("problem", f"{found}, of which networks and processes need the rest", fix)
    if reason := unbounded(configs):
        return Check("optional", f"{found}; {reason}", "serving.gpu.max_queue_size: auto; then onestream build")
    return Check("ok", found)


def _shared_memory() -> Check:
    usage = shutil.disk_usage(SHM_FOLDER)
    found = f"{usage.free // 2**20} MB free of {usage.total // 2**20} MB in {SHM_FOLDER}"
    if usage.free // 2**20 >= LEAST_SHARED_MEMORY_MB:
        return Check("ok", found)
    fix = "docker run --shm-size=1g …, or outside a container: mount -o remount,size=1G /dev/shm"
    return Check("problem", f"{found}; {LEAST_SHARED_MEMORY_MB} MB are needed", fix)


def _other_users() -> Check:
    lacking = []
    if not private_memory_allowed():
        lacking.append(f"Triton's regions lie in {SHM_FOLDER}, closed to them as soon as they are there")
    if not arguments_can_be_hidden():
        lacking.append("they can read the administration's token among Triton's arguments")
    if not lacking:
        return Check("ok", "see neither Triton's regions nor its token")
    fix = (
        "allow user namespaces and ptrace (sysctl user.max_user_namespaces, kernel.yama.ptrace_scope), or let no "
        "other user onto this machine or into this container"
    )
    return Check("optional", "; ".join(lacking), fix)


def _ports(host: str, ports: tuple[int, ...]) -> Check:
    taken: list[int] = []
    for port in ports:
        try:
            check_port(host, port, "doctor")
        except PortInUse:
            taken.append(port)
    if not taken:
        return Check("ok", f"{', '.join(map(str, ports))} are free on {host}")
    found = f"{', '.join(map(str, taken))} in use on {host}, perhaps by a server that runs already"
    return Check("optional", found, "onestream serve --http-port 0 --grpc-port 0 --metrics-port 0")


def _repository(repository: Path) -> Check:
    models = sorted(config.parent.name for config in repository.glob("*/config.pbtxt"))
    if not models:
        return Check("problem", f"no models in {repository}", _BUILD)
    if not [*repository.glob("*/*/model.onnx"), *repository.glob("*/*/model.plan")]:
        return Check("problem", f"{repository}: the networks are not built (no model.onnx)", _BUILD)
    return Check("ok", f"{repository}: {', '.join(models)}")


def _parity(repository: Path) -> Check:
    """The warnings of the certificates beside the generated models, in the words that a model logs when it loads."""
    from onestream.preprocess import Definition, PreprocessError
    from onestream.serving.built import certificate

    folders = sorted(path.parent for path in repository.glob("*/definition.json"))
    if not folders:
        return Check("optional", f"no generated models in {repository}", _BUILD)
    warnings: list[str] = []
    for folder in folders:
        try:
            definition = Definition.from_json((folder / "definition.json").read_text(encoding="utf-8"))
            warnings += certificate.check(folder, definition, model=folder.name)
        except (PreprocessError, ValueError) as error:
            return Check("problem", str(error), _BUILD)
    if not warnings:
        return Check("ok", f"{len(folders)} models certified on these library versions")
    more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
    return Check("optional", f"{warnings[0]}{more}", _BUILD)


def _precision(repository: Path) -> Check:
    """Networks in int8 or bfloat16 beside the same in float32, timed here: what gains depends on the processor."""
    from onestream.preprocess import BackendMissing
    from onestream.serving.built.here import Here, price_of
    from onestream.serving.engine.network_files import NETWORK_FILE, float_beside
    from onestream.serving.errors import BadNetwork

    timed: dict[str, Here] = {}
    # Both models of a network have the same file; a pipeline without its ensemble has one of them.
    networks = {
        file.parent.parent.name.removesuffix(role): file
        for role in ("_fused", "_model")
        for file in repository.glob(f"*{role}/*/{NETWORK_FILE}")
    }
    for network in sorted(networks.values()):
        if not float_beside(network).exists():
            continue
        model = network.parent.parent.name
        try:
            price = price_of(network)
        except BadNetwork as error:
            return Check("problem", f"{model}: {error}", "onestream build PIPELINE --calibrate PHOTOS")
        try:
            timed[model] = Here.measured(network, price, threads=price.speed.threads)
        except BackendMissing as error:
            return Check("problem", f"{model} cannot run here: {error}")
        except BadNetwork as error:
            fix = f"onestream build PIPELINE --precision {price.precision} --calibrate PHOTOS"
            return Check("problem", f"{model}: {error}", fix)
    if not timed:
        return Check("ok", "every network is in float32")
    listed = "; ".join(f"{model}: {here}" for model, here in timed.items())
    if all(here.gains for here in timed.values()):
        return Check("ok", listed)
    found = f"{listed}, so it gains nothing on this processor"
    return Check("optional", found, "onestream build PIPELINE --precision float32")
