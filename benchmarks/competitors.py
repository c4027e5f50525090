"""What is compared: a pipeline of ours and the plain models for the same networks, side by side in one Triton."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import yaml
from onnx import numpy_helper

from benchmarks.agreement import Agree, same_best_classes, same_boxes, same_texts
from benchmarks.photos import PHONE, SIZES, PhotoSet, Size, photo_set
from benchmarks.plan import BF16, CHANGES, INT8, OPENVINO_INT8, UNBOUNDED, Change
from benchmarks.reading import pictures
from benchmarks.reading.readers import NETWORKS, SETTINGS
from onestream.pipelines.networks import ssdlite
from onestream.pipelines.networks.efficientnet_lite import export_efficientnet_lite0, fetch_weights
from onestream.pipelines.networks.legacy_pickle import read_legacy_checkpoint
from onestream.pipelines.networks.ppocr import fetch_network
from onestream.postprocess.detector_family import ANCHORS
from onestream.postprocess.labels import COCO_IDS
from onestream.serving.building.build import build
from onestream.serving.building.quantization.calibration import Calibration

ROOT = Path(__file__).parent.parent
_PLAIN = Path(__file__).parent / "plain"
SCORE_THRESHOLD = 0.25
"""Of ``pipelines/detect.yaml`` and of the plain detector."""
_DATA = ROOT / "serving" / "data"


def _photos(size: Size, folder: Path) -> PhotoSet:
    return photo_set(size, folder=folder)


@dataclass(frozen=True, slots=True)
class Contest:
    """A pipeline of ours, ``name``, against the plain models of ``plain/<name>``, of which *whole* is asked.

    ``plain_files`` gives what the plain models read, by *MODEL/PATH*. ``agree`` compares answers. The names of files of
    results begin with ``prefix``. ``pictures`` makes those of one of the ``sizes`` in a folder. A ``cascade`` is a
    pipeline of stages: neither it nor its competitor has a model for preprocessing or for one network. ``packages`` do
    the competitor's work. Ours with one of the ``changes`` is measured, too.
    """

    name: str
    plain_files: Callable[[], Mapping[str, bytes]]
    agree: Agree
    prefix: str
    sizes: tuple[Size, ...] = SIZES
    pictures: Callable[[Size, Path], PhotoSet] = _photos
    cascade: bool = False
    packages: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()

    @property
    def pipeline_file(self) -> Path:
        """The pipeline."""
        return ROOT / "pipelines" / f"{self.name}.yaml"

    @property
    def fused(self) -> str:
        """The model that does all in one process."""
        return f"{self.name}_fused"

    def models(self, settings: Iterable[PlainSetting]) -> list[str]:
        """The models that are asked, with the plain ones in these settings."""
        changed = (change.fused(self.name) for change in self.changes)
        return [self.name, self.fused, *changed, *(setting.name for setting in settings)]

    def file(self, name: str) -> str:
        """The name of a file of results."""
        return f"{self.prefix}{name}"

    def batching_model(self, model: str) -> str:
        """The model whose batches tell how Triton batched for ``model``: that of its network."""
        if self.cascade or model.endswith("_fused"):
            return model
        return f"{model}_model" if model == self.name else f"{model}_network"


def _classifier() -> dict[str, bytes]:
    return {
        "network/1/model.onnx": _onnx(export_efficientnet_lite0(read_legacy_checkpoint(fetch_weights()))),
        "postprocess/labels.txt": (_DATA / "imagenet_labels.txt").read_bytes(),
    }


def _detector() -> dict[str, bytes]:
    network = ssdlite.export_ssdlite(ssdlite.fetch_graph())
    anchors = next(one for one in network.graph.initializer if one.name == ANCHORS)
    return {
        "network/1/model.onnx": _onnx(network),
        "postprocess/labels.txt": (_DATA / "coco_labels.txt").read_bytes(),
        "postprocess/class_ids.npy": _npy(np.array(COCO_IDS, np.int32)),
        "postprocess/anchors.npy": _npy(numpy_helper.to_array(anchors)),
    }


def _rapid_ocr() -> dict[str, bytes]:
    networks = {f"whole/1/{part}.onnx": fetch_network(name).read_bytes() for part, name in NETWORKS.items()}
    return {"whole/settings.json": json.dumps(SETTINGS).encode(), **networks}


def _onnx(network: onnx.ModelProto) -> bytes:
    content: bytes = network.SerializeToString()
    return content


def _npy(array: npt.NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


CLASSIFY = Contest("classify", _classifier, same_best_classes, "", sizes=(*SIZES, PHONE), changes=CHANGES)
DETECT = Contest(
    "detect",
    _detector,
    partial(same_boxes, score_threshold=SCORE_THRESHOLD),
    "detect-",
    changes=(INT8, BF16, OPENVINO_INT8, UNBOUNDED),  # its resize has no antialiasing, so no `dct_scaling`
)
READ = Contest(
    "read",
    _rapid_ocr,
    same_texts,
    "read-",
    sizes=(pictures.TEN_LINES,),
    pictures=pictures.ten_lines,
    cascade=True,
    packages=("rapidocr",),
)
CONTESTS = {contest.name: contest for contest in (CLASSIFY, DETECT, READ)}


@dataclass(frozen=True, slots=True)
class PlainSetting:
    """How the plain models are deployed.

    ``instances``: processes of preprocessing and of the network each, or of the one model that does everything.
    ``threads``: ONNX Runtime's in each, 0 for its default, one per core.
    """

    instances: int
    threads: int

    @property
    def name(self) -> str:
        """Name of the model that is asked."""
        return f"plain_{self.instances}x_{self.threads or 'default'}"

    def model(self, step: str) -> str:
        """Name of a model in the repository; the step *whole* is what is asked."""
        return self.name if step == "whole" else f"{self.name}_{step}"

    def __str__(self) -> str:
        instances = f"{self.instances} instance{'s' if self.instances > 1 else ''} per step"
        return f"{instances}, ONNX Runtime threads: {self.threads or 'default'}"


DEFAULT_PLAIN = PlainSetting(instances=1, threads=0)
"""What a plain ensemble gets where its configuration says nothing about instances and threads."""


def plain_settings(cores: int) -> tuple[PlainSetting, ...]:
    """The settings that are tried; the best becomes the plain competitor."""
    return tuple(PlainSetting(instances, threads) for instances in sorted({1, cores}) for threads in (0, 1))


def make_repository(
    contest: Contest, folder: Path, settings: tuple[PlainSetting, ...], *, calibrate: Sequence[bytes] = ()
) -> None:
    """Write our pipeline and the plain models in each setting into ``folder``.

    And ours with each of the changes, for which ``calibrate`` are the pictures.
    """
    build(contest.pipeline_file, folder=folder)
    _build_changed(contest, folder, calibrate)
    files = contest.plain_files()
    for setting in settings:
        write_plain(contest.name, folder, setting, files)


def _build_changed(contest: Contest, folder: Path, calibrate: Sequence[bytes]) -> None:
    with tempfile.TemporaryDirectory() as own:
        pictures = [Path(own) / f"{number}.jpg" for number in range(len(calibrate))]
        for picture, content in zip(pictures, calibrate, strict=True):
            picture.write_bytes(content)
        for change in contest.changes:
            fields = yaml.safe_load(contest.pipeline_file.read_text(encoding="utf-8"))
            fields["serving"] = fields.get("serving", {}) | change.serving
            fields["preprocess"]["operations"][0] |= change.decode
            file = Path(own) / f"{change.pipeline(contest.name)}.yaml"
            file.write_text(yaml.safe_dump(fields), encoding="utf-8")
            build(
                file,
                folder=folder,
                precision=change.precision,
                calibration=None if change.precision == "float32" else Calibration(pictures=pictures),
                beside=contest.pipeline_file.parent,
            )


def write_plain(name: str, folder: Path, setting: PlainSetting, files: Mapping[str, bytes]) -> None:
    """Write the models of ``plain/<name>`` in one setting: one for each ``*.pbtxt``, and ``files`` (``Contest``)."""
    values = {"name": setting.name, "instances": setting.instances, "threads": setting.threads}
    for config in sorted((_PLAIN / name).glob("*.pbtxt")):
        model = folder / setting.model(config.stem)
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(Template(config.read_text()).substitute(values))
        code = _PLAIN / "network.py" if config.stem == "network" else config.with_suffix(".py")
        if code.exists():  # an ensemble has none
            shutil.copyfile(code, model / "1" / "model.py")
    for path, content in files.items():
        step, _, inside = path.partition("/")
        (folder / setting.model(step) / inside).write_bytes(content)
