"""Builds a repository that Triton can serve from a pipeline file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy.typing as npt
import onnx

from onestream.postprocess.matte.background import read_picture
from onestream.postprocess.options import (
    Classification,
    Detection,
    Matte,
    PictureBackground,
    Rotation,
    Segmentation,
    Text,
)
from onestream.serving.building import cascade_repository, certificate, onnx_graph, repository
from onestream.serving.building.ctc_tail import characters_of
from onestream.serving.building.detector_tail import read_anchors
from onestream.serving.building.onnx_postprocess import with_activation
from onestream.serving.building.onnx_process import prepare_file
from onestream.serving.building.versions import built_versions, read_pins, version_name, version_of
from onestream.serving.cascade import STAGES_PARAMETER, Cascade, read_file
from onestream.serving.dali_backend import repository as stock
from onestream.serving.engine import served as served_network
from onestream.serving.errors import BadNetwork, BadPipeline, BadVersion
from onestream.serving.networks.ppocr import Network, fetch_network
from onestream.serving.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Built:
    """The result of a build.

    ``pipeline`` is the file's, with what this network asked for; ``notes`` say that, a line each. ``written`` holds the
    files that changed; empty when everything was there already. ``models`` are the names of the Triton models.
    """

    pipeline: Pipeline | Cascade
    folder: Path
    written: list[Path]
    models: list[str]
    notes: list[str]


def build(
    pipeline_file: Path,
    *,
    folder: Path,
    onnx_file: Path | None = None,
    onnx_files: Mapping[str, Path] = MappingProxyType({}),
    form: stock.Form = "python",
    version: int = 1,
    beside: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Built:
    """Build the repository of a pipeline, or of a cascade, in ``folder``.

    ``onnx_file`` is the network; without it, the pipeline's built-in ``network``. ``onnx_files`` are those of a
    cascade's stages by their names. ``form`` *dali-backend* is for the
    unmodified Triton container (``onestream.serving.dali_backend.repository``). A ``version`` above 1 is written beside
    version 1, which must be there, under names of its own (``onestream.serving.building.versions``). Paths in
    the pipeline file are relative to ``beside``, by default its own folder. ``progress`` is called with a line before
    each long step. A network built from the same sources is kept. Raises ``BadPipeline``,
    ``BadNetwork``, ``BadVersion``, ``preprocess.StampMismatch``, or ``preprocess.CannotCompile`` where the form cannot
    do the definition exactly.
    """
    described = read_file(pipeline_file)
    stock.check_folder(folder, form)
    beside = pipeline_file.parent if beside is None else beside
    named = f"{pipeline_file.resolve().parent.name}/{pipeline_file.name}"
    if isinstance(described, Cascade):
        if onnx_file is not None:
            raise BadPipeline(f"{described.name} is a cascade; say whose network it is: --onnx STAGE={onnx_file}")
        if form != "python" or version > 1:
            raise BadPipeline(f"{described.name} is a cascade, which has the form python and version 1 only")
        return _build_cascade(
            described, folder=folder, onnx_files=onnx_files, beside=beside, named=named, progress=progress
        )
    if onnx_files:
        raise BadPipeline(f"{described.name} has no stages; give its network by --onnx FILE")
    return _build_pipeline(
        described,
        folder=folder,
        onnx_file=onnx_file,
        form=form,
        version=version,
        beside=beside,
        named=named,
        progress=progress,
    )


def _build_pipeline(
    pipeline: Pipeline,
    *,
    folder: Path,
    onnx_file: Path | None,
    form: stock.Form,
    version: int,
    beside: Path,
    named: str,
    progress: Callable[[str], None],
) -> Built:
    first = pipeline.name if version > 1 else None
    if version > 1:
        pipeline = _later_version(pipeline, version, folder=folder, form=form)
    background = _background(pipeline, beside)
    if form == "dali-backend":
        labels = _labels(pipeline, beside)
        source = _Source.of(pipeline, onnx_file, anchors=_anchors(pipeline, beside))
        progress(f"preparing the network {source.name}")
        network = source.prepare(pipeline, progress)
        pipeline, notes = _suited(pipeline, network)
        for_stock = stock.plan(pipeline, network, labels=labels)
        return Built(pipeline, folder, stock.install(for_stock, folder, source=named), for_stock.model_names, notes)
    served = _Served.of(pipeline, onnx_file, folder=folder, beside=beside, progress=progress)
    pipeline, notes = _suited(served.pipeline, served.network)
    planned = repository.plan(pipeline, served.outputs, labels=served.labels, background=background, version_of=first)
    written = repository.write(planned.files(source=named), folder)
    written += served.install(folder / f"{pipeline.name}_fused" / "1" / "model.onnx")
    progress("measuring parity with the reference")
    written += certificate.install(pipeline.preprocess, [folder / name for name in planned.model_names])
    return Built(pipeline, folder, written, planned.model_names, notes)


def _build_cascade(
    cascade: Cascade,
    *,
    folder: Path,
    onnx_files: Mapping[str, Path],
    beside: Path,
    named: str,
    progress: Callable[[str], None],
) -> Built:
    if unknown := [name for name in onnx_files if name not in cascade.stages]:
        raise BadPipeline(f"{cascade.name} has no stage {unknown[0]!r}; it has {', '.join(cascade.stages)}")
    networks: list[_Served] = []
    stages: list[cascade_repository.PreparedStage] = []
    notes: list[str] = []
    for name, pipeline in cascade.pipelines.items():
        try:
            served = _Served.of(pipeline, onnx_files.get(name), folder=folder, beside=beside, progress=progress)
            pipeline, own_notes = _suited(_one_by_one(pipeline, served.network), served.network)
        except (BadNetwork, BadPipeline) as error:
            raise type(error)(f"stage {name}: {error}") from None
        networks.append(served)
        notes += [f"stage {name}: {note}" for note in own_notes]
        stages.append(cascade_repository.PreparedStage(name, pipeline, served.outputs, served.labels))
    planned = cascade_repository.plan(cascade, stages)
    written = repository.write(planned.files(source=named), folder)
    for stage, served in zip(stages, networks, strict=True):
        written += served.install(folder / f"{cascade.name}_fused" / "1" / f"{stage.name}.onnx")
        progress(f"measuring parity of stage {stage.name} with the reference")
        forms = [folder / form / STAGES_PARAMETER / stage.name for form in (cascade.name, f"{cascade.name}_fused")]
        written += certificate.install(stage.definition, [served.path.parent.parent, *forms])
    return Built(cascade, folder, written, planned.model_names, notes)


@dataclass(frozen=True, slots=True)
class _Served:
    """A network that is ready to be served, the labels beside it, and where it is installed."""

    pipeline: Pipeline
    network: onnx.ModelProto
    labels: str | None
    path: Path
    is_fresh: bool

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        onnx_file: Path | None,
        *,
        folder: Path,
        beside: Path,
        progress: Callable[[str], None],
    ) -> _Served:
        """The network of a pipeline, as it was built before or prepared anew."""
        labels = _labels(pipeline, beside)
        source = _Source.of(pipeline, onnx_file, anchors=_anchors(pipeline, beside))
        path = folder / f"{pipeline.name}_model" / "1" / "model.onnx"
        network = _built_before(path, source.key(pipeline))
        is_fresh = network is None
        if network is None:
            progress(f"preparing the network {source.name}")
            network = source.prepare(pipeline, progress)
            entry = network.metadata_props.add()
            entry.key, entry.value = _SOURCE_KEY, source.key(pipeline)
        if isinstance(pipeline.postprocess, Detection):
            _check_classes(pipeline.postprocess, network, labels)
        if isinstance(pipeline.postprocess, Text):
            labels = characters_of(network, onnx_graph.classes_of(network), labels)
        return cls(pipeline, network, labels, path, is_fresh)

    @property
    def outputs(self) -> list[served_network.NetworkOutput]:
        """What the network gives."""
        return served_network.outputs(self.network)

    def install(self, second: Path) -> list[Path]:
        """Put the network beside the two models that run it; returns the files that changed."""
        if not self.is_fresh and second.exists():
            return []
        return repository.install_network(self.network.SerializeToString(), self.path, second)


def _one_by_one(pipeline: Pipeline, network: onnx.ModelProto) -> Pipeline:
    """A stage's pipeline with batches of one where its network takes no others: regions come one by one anyway."""
    if not onnx_graph.why_not_batched(network):
        return pipeline
    return pipeline.model_copy(update={"serving": pipeline.serving.model_copy(update={"max_batch_size": 1})})


def _suited(pipeline: Pipeline, served: onnx.ModelProto) -> tuple[Pipeline, list[str]]:
    """The pipeline with what its network asks for, and a line for each of that.

    Raises ``BadNetwork`` where the network cannot take the batches of the pipeline, ``BadPipeline`` where scores would
    be made of scores.
    """
    notes = []
    if reason := onnx_graph.why_not_batched(served):
        if pipeline.serving.max_batch_size > 1:
            raise BadNetwork(f"{reason}; to serve it one image at a time, write serving: {{max_batch_size: 1}}")
        gpu = pipeline.serving.gpu.model_copy(update={"max_batch_size": 1})
        serving = pipeline.serving.model_copy(update={"gpu": gpu})
        pipeline = pipeline.model_copy(update={"serving": serving})
        notes.append(f"one image at a time, on a GPU too: {reason}")
    if isinstance(pipeline.postprocess, Classification | Segmentation | Rotation):
        outputs = served_network.outputs(served)
        postprocess = with_activation(pipeline.postprocess, outputs)
        if postprocess.activation != pipeline.postprocess.activation and outputs[0].activation:
            notes.append(
                f"postprocess.activation: none, since the network's output {outputs[0].name!r} comes from "
                f"{outputs[0].activation} already"
            )
        pipeline = pipeline.model_copy(update={"postprocess": postprocess})
    return pipeline, notes


def _later_version(pipeline: Pipeline, version: int, *, folder: Path, form: stock.Form) -> Pipeline:
    """The pipeline under the name of a version. Raises ``BadVersion`` where it has no place in the folder."""
    if form != "python":
        raise BadVersion(f"versions are for `onestream serve`, which the form {form} does without")
    if 1 not in built_versions(folder, pipeline.name):
        raise BadVersion(f"{folder} holds no {pipeline.name} to be version 1; build that first, without --version")
    name = version_name(pipeline.name, version)
    if (folder / name).exists() and version_of(folder, name) != pipeline.name:
        raise BadVersion(f"{folder / name} is a pipeline of its own, not version {version} of {pipeline.name}")
    pin = read_pins(folder).get(pipeline.name)
    if pin is not None and pin.version == version:
        raise BadVersion(f"version {version} of {pipeline.name} is served; build another: --version {version + 1}")
    return pipeline.model_copy(update={"name": name})


_SOURCE_KEY = "onestream.source"


@dataclass(frozen=True, slots=True)
class _Source:
    """The source of the network, and a key that changes when the source does."""

    name: str
    file: Path | None
    anchors: npt.NDArray[Any] | None

    @classmethod
    def of(cls, pipeline: Pipeline, onnx_file: Path | None, *, anchors: npt.NDArray[Any] | None) -> _Source:
        if onnx_file is not None:
            if not onnx_file.is_file():
                raise BadNetwork(f"{onnx_file}: no such file")
            if onnx_file.stat().st_size > _MOST_NETWORK_BYTES:
                raise BadNetwork(
                    f"{onnx_file}: above 2 GiB, which ONNX does not take; keep its weights in files beside it"
                )
            return cls(str(onnx_file), onnx_file, anchors)
        if pipeline.network is None:
            raise BadPipeline(f"pipeline {pipeline.name} names no built-in network; give its file: --onnx FILE")
        return cls(pipeline.network, None, anchors)

    def key(self, pipeline: Pipeline) -> str:
        content = self.name.encode() if self.file is None else self.file.read_bytes()
        key = content + pipeline.preprocess.digest.encode()
        if isinstance(pipeline.postprocess, Detection | Text):
            key += pipeline.postprocess.model_dump_json().encode()
        if self.anchors is not None:
            key += self.anchors.tobytes()
        if pipeline.network_outputs is not None:
            key += ",".join(pipeline.network_outputs).encode()
        return hashlib.sha256(key).hexdigest()

    def prepare(self, pipeline: Pipeline, progress: Callable[[str], None]) -> onnx.ModelProto:
        if self.file is not None:
            return prepare_file(
                self.file,
                pipeline.preprocess,
                pipeline.postprocess,
                outputs=pipeline.network_outputs,
                anchors=self.anchors,
            )
        return onnx_graph.prepare(
            _BUILT_IN[self.name](progress),
            pipeline.preprocess,
            pipeline.postprocess,
            outputs=pipeline.network_outputs,
            anchors=self.anchors,
        )


def _efficientnet_lite0(progress: Callable[[str], None]) -> onnx.ModelProto:
    from onestream.serving.networks.efficientnet_lite import export_efficientnet_lite0, fetch_weights
    from onestream.serving.networks.legacy_pickle import read_legacy_checkpoint

    progress("fetching the weights of EfficientNet-Lite0 (18 MB, once)")
    return export_efficientnet_lite0(read_legacy_checkpoint(fetch_weights()))


def _selfie_segmentation(_: Callable[[str], None]) -> onnx.ModelProto:
    from onestream.serving.networks.selfie_segmentation import load_selfie_segmentation

    return load_selfie_segmentation()


def _ssdlite_mobilenet_v2(progress: Callable[[str], None]) -> onnx.ModelProto:
    from onestream.serving.networks import ssdlite

    progress("fetching SSDLite-MobileNetV2 (17 MB, once)")
    return ssdlite.export_ssdlite(ssdlite.fetch_graph())


def _nanodet_g(progress: Callable[[str], None]) -> onnx.ModelProto:
    from onestream.serving.networks import nanodet

    progress("fetching NanoDet-g (145 MB, once)")
    return nanodet.export_nanodet_g(nanodet.fetch_graph())


def _ppocr(network: Network) -> Callable[[Callable[[str], None]], onnx.ModelProto]:
    def load(progress: Callable[[str], None]) -> onnx.ModelProto:
        progress("fetching PP-OCR's networks (27 MB, once)")
        return onnx_graph.load(fetch_network(network))

    return load


_BUILT_IN = {
    "efficientnet-lite0": _efficientnet_lite0,
    "selfie-segmentation": _selfie_segmentation,
    "ssdlite-mobilenet-v2": _ssdlite_mobilenet_v2,
    "nanodet-g": _nanodet_g,
    "ppocr-v6-det": _ppocr("ppocr-v6-det"),
    "ppocr-cls": _ppocr("ppocr-cls"),
    "ppocr-v6-rec": _ppocr("ppocr-v6-rec"),
}


def _built_before(path: Path, key: str) -> onnx.ModelProto | None:
    if not path.exists():
        return None
    try:
        model = onnx_graph.load(path)
    except BadNetwork:
        return None
    found = {entry.key: entry.value for entry in model.metadata_props}
    return model if found.get(_SOURCE_KEY) == key else None


def _labels(pipeline: Pipeline, beside: Path) -> str | None:
    options = pipeline.postprocess
    if isinstance(options, Text):
        return None if options.characters is None else _read_text(beside / options.characters, "postprocess.characters")
    if not isinstance(options, Classification | Detection | Segmentation) or options.labels is None:
        return None
    if isinstance(options.labels, tuple):
        return "".join(f"{name}\n" for name in options.labels)
    if options.labels in _OWN_LABELS:
        return (resources.files("onestream.serving") / "data" / f"{options.labels}_labels.txt").read_text("utf-8")
    return _read_text(beside / options.labels, "postprocess.labels")


def _read_text(path: Path, field: str) -> str:
    try:
        return _read(path, field, most=_MOST_LABEL_BYTES).decode()
    except UnicodeDecodeError as error:
        raise BadPipeline(f"{field}: {path}: not UTF-8 at byte {error.start}") from None


def _check_classes(options: Detection, served: onnx.ModelProto, labels: str | None) -> None:
    """Raise ``BadPipeline`` where a detector has another number of classes than there are names or ids for."""
    classes = onnx_graph.classes_of(served)
    names, ids = None if labels is None else len(labels.splitlines()), options.id_of_class
    for field, count in (("labels", names), ("class_ids", None if ids is None else len(ids))):
        if count is not None and classes is not None and count != classes:
            raise BadPipeline(
                f"postprocess.{field} has {count} entries, the network has {classes} classes, if its family is "
                f"{options.family}"
            )
    if names is not None and ids is not None and names != len(ids):
        raise BadPipeline(f"postprocess.labels has {names} names, postprocess.class_ids {len(ids)} ids")


def _anchors(pipeline: Pipeline, beside: Path) -> npt.NDArray[Any] | None:
    """The anchors in the file that a detector's options name."""
    options = pipeline.postprocess
    if not isinstance(options, Detection) or options.anchors is None:
        return None
    path = beside / options.anchors
    return read_anchors(_read(path, "postprocess.anchors", most=_MOST_ANCHOR_BYTES))


def _background(pipeline: Pipeline, beside: Path) -> bytes | None:
    options = pipeline.postprocess
    if not isinstance(options, Matte) or not isinstance(options.background, PictureBackground):
        return None
    path = beside / options.background.path
    content = _read(path, "postprocess.background.path", most=pipeline.limits.max_body_bytes)
    try:
        read_picture(content)
    except ValueError as error:
        raise BadPipeline(f"postprocess.background.path: {path}: {error}") from None
    return content


_OWN_LABELS = ("coco", "imagenet")
_MOST_NETWORK_BYTES = 2**31 - 1
_MOST_ANCHOR_BYTES = 1 << 24
"""The largest file of anchors; 100,000 of them take 3.2 MB as float64."""
_MOST_LABEL_BYTES = 1 << 24
"""The largest file of labels; the 1000 of ImageNet take 11 kB."""


def _read(path: Path, field: str, *, most: int) -> bytes:
    """The content of a file that a pipeline names. Raises ``BadPipeline``."""
    try:
        if path.exists() and not path.is_file():
            raise BadPipeline(f"{field}: {path}: expected a file")
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise BadPipeline(f"{field}: {path}: {error.strerror}; expected a file") from None
    except ValueError as error:
        raise BadPipeline(f"{field}: {str(path)[:60]!r} is no path: {error}") from None
    if len(content) > most:
        raise BadPipeline(f"{field}: {path} has more than {most} bytes")
    return content
