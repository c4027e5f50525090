"""A built model on its way to the machines of a cluster: sent once to each, and checked there by its digest."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ray

from onestream.pipelines.networks.package_files import default_cache_dir
from onestream.preprocess import Definition
from onestream.preprocess.backends.base import Device
from onestream.preprocess.cpu.file_lock import locked
from onestream.serving.cascade import Cascade, read_file
from onestream.serving.engine.stamp import check_same
from onestream.serving.errors import BadPipeline
from onestream.serving.models.in_process import fused_config
from onestream.serving.pipeline import Pipeline
from onestream.wire.kinds import STAGES_PARAMETER

_FOLDER = "ray-models"


@dataclass(frozen=True, slots=True)
class SentModel:
    """The files of a fused model in Ray's object store, which holds them once a machine.

    ``digest`` tells their names and contents.
    """

    name: str
    digest: str
    files: ray.ObjectRef[dict[str, bytes]]

    @classmethod
    def of(cls, folder: Path) -> SentModel:
        """Send the model in ``folder``, such as ``model_repository/classify_fused``. Raises ``BadPipeline``."""
        files = files_of(folder)
        return cls(folder.name, digest_of(files), ray.put(files))

    def folder_here(self) -> Path:
        """A folder of this machine with the model's files, and no others. Raises OSError."""
        place = default_cache_dir() / _FOLDER / self.digest
        place.mkdir(parents=True, exist_ok=True)
        folder = place / self.name
        # The workers of a machine begin together: what one has put there, another must not put there again.
        with locked(place / "lock"):
            if not folder.is_dir() or digest_of(_read(folder)) != self.digest:
                _write(ray.get(self.files), folder)
        return folder


def files_of(folder: Path) -> dict[str, bytes]:
    """The contents of a built model's files, by their names in the folder. Raises ``BadPipeline``."""
    if not any((folder / "1").glob("*.onnx")):
        raise BadPipeline(f"{folder} holds no network; build it with onestream build")
    return _read(folder)


def digest_of(files: Mapping[str, bytes]) -> str:
    """SHA-256 of names and contents."""
    whole = hashlib.sha256()
    for name in sorted(files):
        whole.update(f"{name}\0{len(files[name])}\0".encode())
        whole.update(files[name])
    return whole.hexdigest()


def _read(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    """Put files in the place of what is there, all of them or none."""
    temporary = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        for name, content in files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def built_model(pipeline: str | Path, repository: Path, device: Device = "cpu") -> Path:
    """The folder of a pipeline's fused model in a repository.

    ``pipeline`` is its name, also with ``_fused``, or its file, ending in ``.yaml`` or ``.yml``. Raises ``BadPipeline``
    where it is not built for the device, ``StampMismatch`` where what is built has another definition than the file.
    """
    if str(pipeline).endswith((".yaml", ".yml")):
        described = read_file(Path(pipeline))
        folder = repository / f"{described.name}_fused"
        _check_built(folder, described)
    else:
        folder = repository / f"{str(pipeline).removesuffix('_fused')}_fused"
        if not folder.is_dir():
            raise BadPipeline(
                f"{repository} has no {folder.name}; build it with onestream build, or name its --repository"
            )
    fused_config(folder, device)
    return folder


def _check_built(folder: Path, described: Pipeline | Cascade) -> None:
    definitions = (
        {f"{STAGES_PARAMETER}/{name}": stage.preprocess for name, stage in described.stages.items()}
        if isinstance(described, Cascade)
        else {".": described.preprocess}
    )
    for place, definition in definitions.items():
        path = folder / place / "definition.json"
        if not path.is_file():
            raise BadPipeline(f"{described.name} is not built in {folder.parent}: onestream build")
        built = Definition.from_json(path.read_text())
        check_same(built, definition, one_is=str(folder.name), other_is=f"the file of {described.name}")
