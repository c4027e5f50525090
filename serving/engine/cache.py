"""The cache of TensorRT plans on disk: a file and a sidecar that says what it is.

A plan fits one network, one version of TensorRT and one kind of GPU (those of TensorRT for RTX: one compute
capability); all of that is its key. What does not fit, is damaged or has no sidecar is built again. Any number of
processes may ask: one builds, others wait, also for another plan, since TensorRT times kernels and two at once would
disturb each other.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from onestream.pipelines.networks.package_files import default_cache_dir
from onestream.preprocess.cpu.file_lock import locked
from onestream.preprocess.cuda.device import GpuKind
from onestream.serving.engine import library
from onestream.serving.engine.plan import Capability, PlanOptions, build_plan
from onestream.serving.errors import BadPlan

_RECIPE = 2
"""To be raised when other plans of the same network are made: ``to_float16``, ``cast_first``, ``build_plan``."""


@dataclass(frozen=True, slots=True)
class PlanKey:
    """Everything that a plan depends on; two plans with equal keys can stand for each other.

    ``gpu`` is the name of the GPU that it was built on, since TensorRT times kernels there, and two GPUs of one compute
    capability differ in memory and multiprocessors; empty for TensorRT for RTX, which times none.
    """

    onnx_sha256: str
    library: str
    library_version: str
    compute_capability: str
    gpu: str
    max_batch_size: int
    precision: str
    version_compatible: bool
    recipe: int = _RECIPE

    @classmethod
    def of(cls, model: bytes, options: PlanOptions, *, gpu: GpuKind) -> PlanKey:
        """The key of a network's plan with the TensorRT that is installed here."""
        return cls(
            onnx_sha256=hashlib.sha256(model).hexdigest(),
            library=library.NAME,
            library_version=library.VERSION,
            compute_capability=library.capability_name(gpu.compute_capability),
            gpu=_name(gpu),
            max_batch_size=options.max_batch_size,
            precision=options.precision,
            version_compatible=options.version_compatible,
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the key, which names the plan's file."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def cache_folder() -> Path:
    """The folder of the plans: ``engines`` in ``default_cache_dir()``."""
    return default_cache_dir() / "engines"


def ensure_plan(
    model: bytes,
    options: PlanOptions,
    *,
    gpu: GpuKind,
    folder: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """The path of a served network's plan, which is built where there is none that fits.

    ``model`` is the ONNX file; ``gpu`` the kind of this thread's current GPU, with TensorRT for RTX any; ``folder`` is
    ``cache_folder()`` where it is None. ``progress`` is called with a line before each long step.
    Raises what ``build_plan`` raises, and ``BadPlan`` where the folder cannot be written.
    """
    folder = folder or cache_folder()
    key = PlanKey.of(model, options, gpu=gpu)
    path = folder / f"{key.digest[:32]}.plan"
    if _holds(path, key):
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(
            folder / "build.lock", waiting=partial(progress, "waiting for another process that builds a TensorRT plan")
        ):
            # Another process may have built it while this one waited.
            if not _holds(path, key):
                _build(path, key, model, options, gpu.compute_capability, progress)
    except OSError as error:
        raise BadPlan(
            f"the engine cache {folder} cannot be written: {error.strerror or error}; "
            "ONESTREAM_CACHE names another folder"
        ) from None
    return path


def read_plan(path: Path, *, gpu: GpuKind) -> tuple[PlanKey, bytes]:
    """A plan's key and content, after its sidecar was compared with this machine and the content.

    Raises ``BadPlan`` where it was made for another GPU or TensorRT, is damaged, or has no sidecar.
    """
    key, sha256 = _read_sidecar(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadPlan(f"{path.name}: {error.strerror or error}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise BadPlan(f"{path.name} is damaged: its content is not what its sidecar describes; delete both")
    here = library.capability_name(gpu.compute_capability)
    if key.compute_capability != here:
        raise BadPlan(f"{path.name} was built for compute capability {key.compute_capability}; this GPU has {here}")
    if key.library != library.NAME or not _version_fits(key):
        raise BadPlan(f"{path.name} was built with {key.library} {key.library_version}; here is {library.TITLE}")
    if key.gpu != _name(gpu):
        raise BadPlan(f"{path.name} was built on {key.gpu}; this GPU is {gpu.name}")
    return key, content


def _version_fits(key: PlanKey) -> bool:
    if key.library_version == library.VERSION:
        return True
    built, here = (tuple(map(_number, version.split("."))) for version in (key.library_version, library.VERSION))
    return key.version_compatible and built[:1] == here[:1] and built <= here


def _name(gpu: GpuKind) -> str:
    return "" if library.IS_RTX else gpu.name


def _number(part: str) -> int:
    return int(part) if part.isdigit() else 0


def _holds(path: Path, key: PlanKey) -> bool:
    """Whether a file is the undamaged plan of this key."""
    try:
        found, sha256 = _read_sidecar(path)
        return found == key and hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    except (BadPlan, OSError):
        return False


def _sidecar(path: Path) -> Path:
    return path.with_suffix(".json")


def _read_sidecar(path: Path) -> tuple[PlanKey, str]:
    try:
        content: dict[str, Any] = json.loads(_sidecar(path).read_text(encoding="utf-8"))
        return PlanKey(**content["key"]), str(content["plan_sha256"])
    except OSError:
        raise BadPlan(
            f"{path.name} has no {_sidecar(path).name} beside it, which would say what it was built for"
        ) from None
    except (ValueError, TypeError, KeyError):
        raise BadPlan(f"{_sidecar(path).name} is not the description of a plan") from None


def _build(
    path: Path,
    key: PlanKey,
    model: bytes,
    options: PlanOptions,
    compute_capability: Capability,
    progress: Callable[[str], None],
) -> None:
    began = time.monotonic()
    kind = "-".join([key.compute_capability, *re.findall(r"\w+", key.gpu)])
    timing_path = path.parent / f"timing-{key.library}-{key.library_version}-{kind}.cache"
    built = build_plan(
        model,
        options,
        compute_capability=compute_capability,
        timing_cache=timing_path.read_bytes() if timing_path.exists() else b"",
        progress=progress,
    )
    _write(timing_path, built.timing_cache)
    _write(path, built.plan)
    described = {"key": asdict(key), "plan_sha256": hashlib.sha256(built.plan).hexdigest()}
    # Last, since a plan counts from the moment when its sidecar describes it.
    _write(_sidecar(path), json.dumps(described, indent=2).encode() + b"\n")
    progress(f"built the plan in {time.monotonic() - began:.1f} s ({len(built.plan) / 1e6:.1f} MB)")


def _write(path: Path, content: bytes) -> None:
    """Write a file so that nobody ever sees a part of it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        # Made for its owner alone; a server of another user reads it too.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
