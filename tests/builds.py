"""Builds that tests share: the product's ``build``, done once for each content.

The key is the content of everything that a build reads: the pipeline file, the files that it names, the networks, the
options, and all sources of the product. So two tests that need the same repository build it once, on any worker and in
the next run too, and a changed product builds anew. Tests of the build itself call the product's ``build``, of which
``hasten`` makes two steps faster in every test.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import inspect
import os
import pickle
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import suite_cost

from onestream.preprocess import Definition
from onestream.serving.building import build as building
from onestream.serving.building import certify, onnx_process
from onestream.serving.building.quantization.calibration import Calibration
from onestream.serving.built.certificate import Certificate
from onestream.serving.engine.network_files import BUILT_FROM_FILE
from onestream.serving.engine.quantization import this_processor

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache" / "tests"
_PRODUCT = ("wire", "preprocess", "postprocess", "serving", "pipelines")
_LIBRARIES = ("numpy", "onnx", "onnxruntime", "nvidia-dali-cuda120", "pillow", "numba")
_FORM = 4
"""Of what is kept of a build; another does not read it."""
_MOST_KEPT = 2
"""Versions of the product whose builds are kept: today's and the one before."""


_build = building.build
"""A test may put the ``build`` below in its place, for a command."""


@functools.cache
def product_digest() -> str:
    """SHA-256 of the product's sources and of the versions of the libraries that compute its files."""
    digest = hashlib.sha256()
    for package in _PRODUCT:
        for path in sorted((ROOT / package).rglob("*")):
            if path.is_file() and path.parent.name != "__pycache__":  # compiled files change from run to run
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    for library in _LIBRARIES:
        try:
            digest.update(f"{library}=={metadata.version(library)}\n".encode())
        except metadata.PackageNotFoundError:
            digest.update(f"no {library}\n".encode())
    return digest.hexdigest()[:16]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that all processes of the suite respect."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cache_folder() -> Path:
    """The folder for what is made of today's product; older ones are removed."""
    folder = CACHE / product_digest()
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        kept = sorted((path for path in CACHE.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
        for old in kept[:-_MOST_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def build(
    pipeline_file: Path,
    *,
    folder: Path,
    onnx_file: Path | None = None,
    onnx_files: Mapping[str, Path] = MappingProxyType({}),
    **options: Any,
) -> building.Built:
    """What ``onestream.serving.building.build.build`` does, from the cache where the same was built before.

    What depends on the content of ``folder`` is always built. A calibration is known by its pictures and by this
    processor, whose times it holds. Nothing is told of ``progress``.
    """
    networks = {"": onnx_file, **onnx_files} if onnx_file is not None else dict(onnx_files)
    name = pipeline_file.stem
    if options.get("version", 1) != 1 or any(folder.glob(f"{name}*")):
        return _build(pipeline_file, folder=folder, onnx_file=onnx_file, onnx_files=onnx_files, **options)
    calibration: Calibration | None = options.pop("calibration", None)
    usual = {one.name: one.default for one in inspect.signature(_build).parameters.values()}
    options = {name: value for name, value in options.items() if name != "progress" and value != usual[name]}
    text = pipeline_file.read_bytes()
    beside = options.get("beside") or pipeline_file.parent
    digest = hashlib.sha256(text + repr((_FORM, name, sorted(options.items(), key=str))).encode())
    for path in sorted(path for path in beside.iterdir() if path.is_file() and path.name.encode() in text):
        digest.update(path.name.encode() + path.read_bytes())
    for stage, path in networks.items():
        digest.update(stage.encode() + b"\0" + (path.read_bytes() if path is not None and path.is_file() else b"none"))
    if calibration is not None:
        digest.update(f"{this_processor()} {calibration.min_agreement}".encode())
        for path in [*calibration.pictures, *([] if calibration.labels is None else [calibration.labels])]:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    kept = cache_folder() / "builds" / digest.hexdigest()[:32]
    with locked(kept.with_suffix(".lock")):
        if not (kept / "built.pickle").exists():
            shutil.rmtree(kept, ignore_errors=True)
            built = _build(
                pipeline_file,
                folder=kept / "repository",
                onnx_file=onnx_file,
                onnx_files=onnx_files,
                calibration=calibration,
                **options,
            )
            files = {f"{path.absolute()}\n": stage for stage, path in networks.items()}
            (kept / "built.tmp").write_bytes(pickle.dumps((built, _named(pipeline_file), files)))
            os.replace(kept / "built.tmp", kept / "built.pickle")
    built, named, files = pickle.loads((kept / "built.pickle").read_bytes())
    shutil.copytree(kept / "repository", folder, symlinks=True, dirs_exist_ok=True)
    for note in (kept / "repository").rglob(f"*{BUILT_FROM_FILE}"):
        built_from = networks[files[note.read_text()]].absolute()
        (folder / note.relative_to(kept / "repository")).write_text(f"{built_from}\n")
    if named != _named(pipeline_file):
        for path in (folder / path.relative_to(built.folder) for path in built.written):
            if path.suffix in (".pbtxt", ".py"):
                path.write_bytes(path.read_bytes().replace(named, _named(pipeline_file)))
    written = [folder / path.relative_to(built.folder) for path in built.written]
    sources = {
        name: replace(one, source=str(networks.get(name, onnx_file or one.source)))
        for name, one in built.networks.items()
    }
    return replace(built, folder=folder, written=written, networks=sources)


def _named(pipeline_file: Path) -> bytes:
    """What the files of a build say that they are made from."""
    return f"{pipeline_file.resolve().parent.name}/{pipeline_file.name}".encode()


_REAL: dict[tuple[Any, str], Any] = {
    (onnx_process, "in_own_process"): onnx_process.in_own_process,
    (certify, "issue"): certify.issue,
}


def hasten() -> None:
    """Prepare networks in this process, which has imported ONNX already, and measure each definition once."""
    onnx_process.in_own_process = lambda request, _timeout_s: onnx_process.answer(request)
    certify.issue = _issue_once
    building._build_pipeline = suite_cost.counted("builds", building._build_pipeline)
    building._build_cascade = suite_cost.counted("builds", building._build_cascade)


def restore(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo ``hasten`` for a test."""
    for (module, name), real in _REAL.items():
        monkeypatch.setattr(module, name, real)


def _issue_once(definition: Definition) -> Certificate:
    kept = cache_folder() / "certificates" / f"{definition.digest}.json"
    with locked(kept.with_suffix(".lock")):
        if kept.exists():
            return Certificate.model_validate_json(kept.read_bytes())
        issued = _REAL[certify, "issue"](definition)
        kept.write_text(issued.text())
        return issued
