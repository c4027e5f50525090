"""What is compared: a pipeline of ours and the plain ensemble for the same network, side by side in one Triton."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from benchmarks.agreement import Agree, same_best_classes, same_boxes
from onestream.postprocess.detector_family import ANCHORS
from onestream.postprocess.labels import COCO_IDS
from onestream.serving.building.build import build
from onestream.serving.networks import ssdlite
from onestream.serving.networks.efficientnet_lite import export_efficientnet_lite0, fetch_weights
from onestream.serving.networks.legacy_pickle import read_legacy_checkpoint

ROOT = Path(__file__).parent.parent
_PLAIN = Path(__file__).parent / "plain"
SCORE_THRESHOLD = 0.25
"""Of ``pipelines/detect.yaml`` and of the plain detector."""
_DATA = ROOT / "serving" / "data"


@dataclass(frozen=True, slots=True)
class Contest:
    """A pipeline of ours, ``name``, against the plain ensemble of ``plain/<name>``.

    ``network`` exports what both run. ``plain_files`` are what the plain ensemble's last step reads, by name, for that
    network. ``agree`` compares answers. The names of files of results begin with ``prefix``.
    """

    name: str
    network: Callable[[], onnx.ModelProto]
    plain_files: Callable[[onnx.ModelProto], Mapping[str, bytes]]
    agree: Agree
    prefix: str

    @property
    def pipeline_file(self) -> Path:
        """The pipeline."""
        return ROOT / "pipelines" / f"{self.name}.yaml"

    @property
    def fused(self) -> str:
        """The model that does all in one process."""
        return f"{self.name}_fused"

    def file(self, name: str) -> str:
        """The name of a file of results."""
        return f"{self.prefix}{name}"


def _classifier() -> onnx.ModelProto:
    return export_efficientnet_lite0(read_legacy_checkpoint(fetch_weights()))


def _detector() -> onnx.ModelProto:
    return ssdlite.export_ssdlite(ssdlite.fetch_graph())


def _names_of_classes(_network: onnx.ModelProto) -> dict[str, bytes]:
    return {"labels.txt": (_DATA / "imagenet_labels.txt").read_bytes()}


def _anchors_and_classes(network: onnx.ModelProto) -> dict[str, bytes]:
    anchors = next(one for one in network.graph.initializer if one.name == ANCHORS)
    return {
        "labels.txt": (_DATA / "coco_labels.txt").read_bytes(),
        "class_ids.npy": _npy(np.array(COCO_IDS, np.int32)),
        "anchors.npy": _npy(numpy_helper.to_array(anchors)),
    }


def _npy(array: npt.NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


CLASSIFY = Contest("classify", _classifier, _names_of_classes, same_best_classes, "")
DETECT = Contest(
    "detect", _detector, _anchors_and_classes, partial(same_boxes, score_threshold=SCORE_THRESHOLD), "detect-"
)
CONTESTS = {contest.name: contest for contest in (CLASSIFY, DETECT)}


@dataclass(frozen=True, slots=True)
class PlainSetting:
    """How a plain ensemble is deployed.

    ``instances``: processes of its preprocessing and of its network each. ``threads``: ONNX Runtime's in each, 0 for
    its default, one per core.
    """

    instances: int
    threads: int

    @property
    def name(self) -> str:
        """Name of the ensemble in the repository."""
        return f"plain_{self.instances}x_{self.threads or 'default'}"

    def __str__(self) -> str:
        instances = f"{self.instances} instance{'s' if self.instances > 1 else ''} per step"
        return f"{instances}, ONNX Runtime threads: {self.threads or 'default'}"


DEFAULT_PLAIN = PlainSetting(instances=1, threads=0)
"""What a plain ensemble gets where its configuration says nothing about instances and threads."""


def plain_settings(cores: int) -> tuple[PlainSetting, ...]:
    """The settings that are tried; the best becomes the plain competitor."""
    return tuple(PlainSetting(instances, threads) for instances in sorted({1, cores}) for threads in (0, 1))


def make_repository(contest: Contest, folder: Path, settings: tuple[PlainSetting, ...]) -> None:
    """Write our pipeline and one plain ensemble per setting into ``folder``."""
    build(contest.pipeline_file, folder=folder)
    network = contest.network()
    file = folder / "plain_network.onnx"
    onnx.save(network, str(file))
    for setting in settings:
        _write_plain(contest, folder, setting, file, contest.plain_files(network))
    file.unlink()


def _write_plain(
    contest: Contest, folder: Path, setting: PlainSetting, network: Path, files: Mapping[str, bytes]
) -> None:
    values = {"name": setting.name, "instances": setting.instances, "threads": setting.threads}
    own = _PLAIN / contest.name
    for step in ("preprocess", "network", "postprocess"):
        version = folder / f"{setting.name}_{step}" / "1"
        version.mkdir(parents=True)
        shutil.copyfile(_PLAIN / "network.py" if step == "network" else own / f"{step}.py", version / "model.py")
        config = Template((own / f"{step}.pbtxt").read_text()).substitute(values)
        (version.parent / "config.pbtxt").write_text(config)
    os.link(network, folder / f"{setting.name}_network" / "1" / "model.onnx")
    for name, content in files.items():
        (folder / f"{setting.name}_postprocess" / name).write_bytes(content)
    (folder / setting.name / "1").mkdir(parents=True)
    ensemble = Template((own / "ensemble.pbtxt").read_text()).substitute(values)
    (folder / setting.name / "config.pbtxt").write_text(ensemble)
