"""The model repository in which all competitors live side by side, served by one Triton."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from string import Template

import onnx

from onestream.serving.building.build import build
from onestream.serving.networks.efficientnet_lite import export_efficientnet_lite0, fetch_weights
from onestream.serving.networks.legacy_pickle import read_legacy_checkpoint

ROOT = Path(__file__).parent.parent
PIPELINE = ROOT / "pipelines" / "classify.yaml"
LABELS = ROOT / "serving" / "data" / "imagenet_labels.txt"
_PLAIN = Path(__file__).parent / "plain"


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


def make_repository(folder: Path, settings: tuple[PlainSetting, ...]) -> None:
    """Write our pipeline and one plain ensemble per setting into ``folder``."""
    build(PIPELINE, folder=folder)
    network = folder / "plain_network.onnx"
    onnx.save(export_efficientnet_lite0(read_legacy_checkpoint(fetch_weights())), str(network))
    for setting in settings:
        _write_plain(folder, setting, network)
    network.unlink()


def _write_plain(folder: Path, setting: PlainSetting, network: Path) -> None:
    values = {"name": setting.name, "instances": setting.instances, "threads": setting.threads}
    for step in ("preprocess", "network", "postprocess"):
        version = folder / f"{setting.name}_{step}" / "1"
        version.mkdir(parents=True)
        shutil.copyfile(_PLAIN / f"{step}.py", version / "model.py")
        config = Template((_PLAIN / f"{step}.pbtxt").read_text()).substitute(values)
        (version.parent / "config.pbtxt").write_text(config)
    os.link(network, folder / f"{setting.name}_network" / "1" / "model.onnx")
    shutil.copyfile(LABELS, folder / f"{setting.name}_postprocess" / "labels.txt")
    (folder / setting.name / "1").mkdir(parents=True)
    ensemble = Template((_PLAIN / "ensemble.pbtxt").read_text()).substitute(values)
    (folder / setting.name / "config.pbtxt").write_text(ensemble)
