"""The folder that Triton serves from: links to a repository's models, where a pipeline's name means one version.

Clients call ``NAME``, ``NAME_fused`` and ``NAME_video``. At a start with version 1 these are the repository's own.
After a rollout the first two are ensembles over the models of a version, which Triton exchanges in one step, while
requests that are inside the old one end there. Nothing of the repository is changed.
"""

from __future__ import annotations

import contextlib
import os
import py_compile
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from onestream.serving.built.triton_config import from_text, to_text
from onestream.serving.built.versions import (
    FORMS,
    Pin,
    check_built,
    networks_asked,
    version_forms,
    version_name,
    version_steps,
)
from onestream.serving.errors import BadVersion
from onestream.serving.server.fit import link_entries

Fit = Callable[[Path, Path, Sequence[str]], Path]
"""Makes a repository fit this machine: the repository, a folder to fill, names of models; returns which to serve."""

_CONFIGS = (Path("config.pbtxt"), Path("configs") / "cpu.pbtxt")


class StagedRepository:
    """The view of one repository. For one thread.

    Args:
        repository: folder of models.
        folder: made here, and filled.
        models: names to be loaded, as Triton is told; ``("*",)`` for all.
        without: models that are left out of the view.
        fit: makes models fit this machine.
        pins: the version that each pipeline's name means; 1 for those that are not in it.

    Raises:
        BadVersion: a pinned version was not built.
    """

    def __init__(
        self,
        repository: Path,
        folder: Path,
        *,
        models: Sequence[str],
        without: Collection[str],
        fit: Fit,
        pins: Mapping[str, Pin],
    ) -> None:
        self.repository = repository
        self.folder = folder
        self._fit = fit
        self._staged = 0
        self._served: dict[str, int] = {}
        folder.mkdir()
        later = {pipeline: pin.version for pipeline, pin in pins.items() if pin.version > 1}
        renamed = {f"{name}{form}": f"{version_name(name, n)}{form}" for name, n in later.items() for form in FORMS}
        names = [path.name for path in repository.iterdir() if path.is_dir() and path.name not in without]
        source = self._chosen(names) if without else repository
        fitted = fit(source, self._stage(), [renamed.get(name, name) for name in models])
        self._take(fitted, names)
        for pipeline, version in later.items():
            self.add(pipeline, version)
            self.point(pipeline, version)

    def served(self, pipeline: str) -> int:
        """The version that a pipeline's name means here."""
        return self._served.get(pipeline, 1)

    def add(self, pipeline: str, version: int) -> list[str]:
        """Bring in a version as it is in the repository now; returns the names to load, in this order.

        These are its forms (``version_forms``), and before them the networks that they ask by themselves.

        Raises:
            BadVersion: it was not built.
            ServerError: it cannot be made to fit this machine.
        """
        check_built(self.repository, pipeline, version)
        if version == 1 and (self.repository / f"{pipeline}_v1").exists():
            raise BadVersion(f"{pipeline}_v1 is a pipeline of its own; its name is needed for version 1 of {pipeline}")
        name, forms = version_name(pipeline, version), version_forms(pipeline, version)
        steps = version_steps(self.repository, pipeline, version)
        own = [*steps, *(self._video(pipeline, version) if version > 1 else [])]
        fitted = self._fitted([*own, *(f"{name}{form}" for form in FORMS)])
        self._take(fitted, own)
        for form, model in zip(FORMS, forms, strict=True):
            self._copy(fitted / f"{name}{form}", model)
        return [*networks_asked(self.repository, name), *forms]

    def point(self, pipeline: str, version: int) -> list[str]:
        """Let a pipeline's name mean a version, of which every model is in the view; returns the names to load again.

        Raises:
            BadVersion: the version is not a replacement for what the name means now.
        """
        video = self._video(pipeline, version)
        if bool(video) != bool(self._video(pipeline, 1)):
            raise BadVersion(f"version {version} of {pipeline} and version 1 do not both take video streams")
        ensemble, fused = version_forms(pipeline, version)
        self._alias(ensemble, pipeline)
        self._alias(ensemble, f"{pipeline}_fused", step=fused)
        for model in video:
            self._copy(self._fitted(video) / model, f"{pipeline}_video")
        self._served[pipeline] = version
        return [*(f"{pipeline}{form}" for form in FORMS), *([f"{pipeline}_video"] if video else [])]

    def bring(self, models: Sequence[str]) -> None:
        """Bring in models as they are in the repository now. Raises ``ServerError`` as ``add``."""
        self._take(self._fitted(models), models)

    def stand_in(self, model: str, pipeline: str) -> None:
        """Put the pipeline, as it is served now, in the place of a model that did not load."""
        self._alias(pipeline, model)

    def files_of(self, model: str) -> frozenset[tuple[str, int, int, int]]:
        """A model's files as they are now: path, inode, size and time of change of each; empty where there are none."""
        top, found = self.folder / model, set()
        for folder, _, names in os.walk(top, followlinks=True):
            # The processes themselves write compiled files beside the model's.
            for path in (Path(folder, name) for name in names if not name.endswith(".pyc")):
                with contextlib.suppress(OSError):
                    stat = path.stat()
                    found.add((str(path.relative_to(top)), stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return frozenset(found)

    def _video(self, pipeline: str, version: int) -> list[str]:
        model = f"{version_name(pipeline, version)}_video"
        return [model] if (self.repository / model / "config.pbtxt").exists() else []

    def _stage(self) -> Path:
        self._staged += 1
        return self.folder.with_name(f"{self.folder.name}-{self._staged}")

    def _fitted(self, models: Sequence[str]) -> Path:
        """A folder that holds these models, fit for this machine."""
        return self._fit(self._chosen(models), self._stage(), models)

    def _chosen(self, models: Sequence[str]) -> Path:
        """A folder that holds these models as they are in the repository."""
        chosen = self._stage()
        chosen.mkdir()
        for model in models:
            (chosen / model).symlink_to((self.repository / model).resolve())
        return chosen

    def _take(self, fitted: Path, models: Sequence[str]) -> None:
        for model in models:
            for script in (fitted / model).glob("*/model.py"):
                # The first process would write this beside it, and Triton would see a model that changed.
                with contextlib.suppress(OSError):
                    py_compile.compile(str(script), quiet=2)
            _remove(self.folder / model)
            (self.folder / model).symlink_to((fitted / model).resolve())

    def _alias(self, version: str, model: str, *, step: str | None = None) -> None:
        """Make ``model`` an ensemble with the face of a version's NAME.

        It has the same steps, or ``step`` as the only one; over a cascade's NAME, which is no ensemble, that itself.
        """
        config = from_text((self.folder / version / "config.pbtxt").read_text(encoding="utf-8"))
        face = ModelConfig(name=model, platform="ensemble", max_batch_size=config.max_batch_size)
        face.input.extend(config.input)
        face.output.extend(config.output)
        face.parameters.MergeFrom(config.parameters)
        for tensor in face.input:
            # An ensemble makes no batches, and its steps see to their own shapes.
            tensor.allow_ragged_batch = False
            tensor.ClearField("reshape")
        if step is None and config.ensemble_scheduling.step:
            face.ensemble_scheduling.CopyFrom(config.ensemble_scheduling)
        else:
            only = face.ensemble_scheduling.step.add(model_name=step or version, model_version=-1)
            only.input_map.update({tensor.name: tensor.name for tensor in face.input})
            only.output_map.update({tensor.name: tensor.name for tensor in face.output})
        _remove(self.folder / model)
        (self.folder / model / "1").mkdir(parents=True)
        (self.folder / model / "config.pbtxt").write_text(to_text(face, source=version))

    def _copy(self, source: Path, model: str) -> None:
        """Put a model in under a name. Its configurations are written anew: Triton goes by the time of files."""
        _remove(self.folder / model)
        link_entries(source, self.folder / model, but=[path.parts[0] for path in _CONFIGS])
        for path in _CONFIGS:
            if (source / path).exists():
                config = from_text((source / path).read_text(encoding="utf-8"))
                config.name = model
                (self.folder / model / path).parent.mkdir(exist_ok=True)
                (self.folder / model / path).write_text(to_text(config, source=source.name))


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
