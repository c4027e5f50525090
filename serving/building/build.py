"""Builds a repository that Triton can serve from a pipeline file."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import onnx

from onestream.serving.building import (
    cascade_repository,
    certify,
    forms,
    gpu_precision,
    pipeline_repository,
    repository,
    triton_options,
)
from onestream.serving.building.dali_backend import repository as stock
from onestream.serving.building.named_files import anchors_of, background_of, labels_of
from onestream.serving.building.network_source import NetworkSource, ServedNetwork, whole_pictures
from onestream.serving.building.quantization.calibration import Calibration
from onestream.serving.building.quantization.pictures import Split
from onestream.serving.building.suited import suited_to_network
from onestream.serving.built import memory_pool
from onestream.serving.built.certificate import Certificate
from onestream.serving.built.versions import built_versions, check_replaceable, served_name, version_name, version_of
from onestream.serving.cascade import Cascade, read_file
from onestream.serving.engine import served as served_network
from onestream.serving.engine.network_files import NETWORK_FILE
from onestream.serving.engine.quantization import Price
from onestream.serving.engine.table import CPU_ENGINES, ENGINES
from onestream.serving.errors import BadNetwork, BadPipeline, BadVersion
from onestream.serving.graph import no_network, onnx_graph
from onestream.serving.graph.network_inputs import require_pixels_alone
from onestream.serving.pipeline import FORMS, CpuPrecision, GpuOptions, Pipeline, ServingOptions, validated
from onestream.wire.kinds import STAGES_PARAMETER

_Described = TypeVar("_Described", Pipeline, Cascade)


@dataclass(frozen=True, slots=True)
class BuiltNetwork:
    """Where a network came from: its file or built-in name; and what was measured, None in the form dali-backend."""

    source: str
    certificate: Certificate | None


@dataclass(frozen=True, slots=True)
class Built:
    """The result of a build.

    ``pipeline`` is the file's, with what this network asked for; ``notes`` say that, a line each. ``written`` holds the
    files that changed; empty when everything was there already. ``models`` are the names of the Triton models.
    ``networks`` are known by the pipeline or by its stages.
    """

    pipeline: Pipeline | Cascade
    folder: Path
    written: list[Path]
    models: list[str]
    notes: list[str]
    networks: dict[str, BuiltNetwork]

    @property
    def quantizations(self) -> dict[str, Price]:
        """What networks in int8 or bfloat16 cost, by the pipeline or by its stages."""
        certificates = {name: one.certificate for name, one in self.networks.items()}
        return {name: one.quantization for name, one in certificates.items() if one and one.quantization}


def build(
    pipeline_file: Path,
    *,
    folder: Path,
    onnx_file: Path | None = None,
    onnx_files: Mapping[str, Path] = MappingProxyType({}),
    form: stock.Form = "python",
    version: int = 1,
    precision: CpuPrecision | None = None,
    calibration: Calibration | None = None,
    beside: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Built:
    """Build the repository of a pipeline, or of a cascade, in ``folder``.

    ``onnx_file`` is the network; without it, the pipeline's built-in ``network``, or else the file from which it was
    built last in ``folder``, for a new version the served one. ``onnx_files`` are those of a cascade's stages by their
    names. ``form`` *dali-backend* is for the unmodified Triton container
    (``onestream.serving.building.dali_backend.repository``). A ``version`` above 1 is written beside version 1, which
    must be there, under names of its own (``onestream.serving.built.versions``); one that a rollout serves, or that
    ``--back`` returns to, is not changed. ``precision`` is that of the network on a CPU, by default the file's; *int8*
    and *bf16* take a ``calibration``, without which the network that was calibrated before is kept. Paths in the
    pipeline file are relative to ``beside``, by default its own folder. ``progress`` is called with a line before each
    long step. A network built from the same sources is kept. Raises ``BadPipeline``, ``BadNetwork``, ``BadVersion``,
    ``preprocess.StampMismatch``, or ``preprocess.CannotCompile`` where the form cannot do the definition exactly.
    """
    described = _in_precision(read_file(pipeline_file), precision)
    _check_engine(described.serving, form)
    gpu_precision.check(described.serving)
    triton_options.check(described.serving, form)
    if calibration is not None and described.serving.precision == "float32":
        raise BadPipeline("pictures to calibrate with are for less precision; say --precision int8 or bf16")
    stock.check_folder(folder, form)
    if calibration is not None:
        check_replaceable(folder, described.name, version)  # before it takes minutes
    if form != "python" and set(described.serving.forms) != set(FORMS):
        raise BadPipeline(f"serving.forms is for the form python; {form} has NAME alone")
    if form == "python":
        forms.check(folder, described.name, version, described.serving.forms)
    beside = pipeline_file.parent if beside is None else beside
    named = f"{pipeline_file.resolve().parent.name}/{pipeline_file.name}"
    if isinstance(described, Cascade):
        if onnx_file is not None:
            raise BadPipeline(
                f"{described.name} is a cascade; say whose network it is: --onnx STAGE={shlex.quote(str(onnx_file))}"
            )
        if form != "python":
            raise BadPipeline(f"{described.name} is a cascade, which has the form python only")
        return _build_cascade(
            described,
            folder=folder,
            onnx_files=onnx_files,
            version=version,
            beside=beside,
            named=named,
            calibration=calibration,
            progress=progress,
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
        calibration=calibration,
        progress=progress,
    )


def _check_engine(serving: ServingOptions, form: stock.Form) -> None:
    """Raise ``BadPipeline`` where a CPU's engine is for another precision or form."""
    engine = serving.cpu.engine
    if serving.precision == "bf16" and not CPU_ENGINES[engine].in_bfloat16:
        able = " or ".join(name for name, row in CPU_ENGINES.items() if row.in_bfloat16)
        raise BadPipeline(
            f"serving.precision bf16 is for serving.cpu.engine {able}, got {engine}; write in the pipeline file: "
            f"serving: {{cpu: {{engine: {able}}}}}"
        )
    if form == "dali-backend" and engine not in ENGINES:
        raise BadPipeline(f"serving.cpu.engine {engine} is for the form python; leave it out for the form dali-backend")


def _build_pipeline(
    pipeline: Pipeline,
    *,
    folder: Path,
    onnx_file: Path | None,
    form: stock.Form,
    version: int,
    beside: Path,
    named: str,
    calibration: Calibration | None,
    progress: Callable[[str], None],
) -> Built:
    no_network.check(pipeline, onnx_file)
    first = pipeline.name if version > 1 else None
    files_of_served = _files_of_pipeline(folder, served_name(folder, pipeline.name))
    if version > 1:
        pipeline = _later_version(pipeline, version, folder=folder, form=form)
    background = background_of(pipeline, beside)
    files = _files_of_pipeline(folder, pipeline.name)
    if form == "dali-backend" and pipeline.serving.precision != "float32":
        precision = pipeline.serving.precision
        raise BadPipeline(f"serving.precision {precision} is for the form python: the form dali-backend takes float32")
    if form == "dali-backend":
        labels = labels_of(pipeline, beside)
        source = NetworkSource.of(pipeline, onnx_file, files=files[:1], anchors=anchors_of(pipeline, beside))
        progress(f"preparing the network {source.name}")
        network = source.prepare(pipeline, progress)
        require_pixels_alone(network, "the form dali-backend")
        pipeline, notes = suited_to_network(pipeline, network)
        for_stock = stock.plan(pipeline, network, labels=labels)
        written = stock.install(for_stock, folder, source=named)
        source.remember(files[0])
        networks = {pipeline.name: BuiltNetwork(source.name, None)}
        return Built(pipeline, folder, written, for_stock.model_names, notes, networks)
    served = ServedNetwork.of(
        pipeline,
        onnx_file,
        files=files,
        served=files_of_served,
        beside=beside,
        calibration=calibration,
        for_tensorrt=gpu_precision.has_plans(pipeline),
        progress=progress,
    )
    pipeline, notes = suited_to_network(served.pipeline, served.network)
    pipeline, on_gpu = gpu_precision.decided(pipeline, served)
    notes += on_gpu
    planned = pipeline_repository.plan(
        pipeline,
        served.outputs,
        inputs=served.inputs,
        outputs_vary=onnx_graph.outputs_vary(served.network),
        labels=served.labels,
        background=background,
        version_of=first,
    )
    forms.check_left_out(planned, folder)
    described, files = planned.files(source=named), forms.network_files(planned, files)
    if repository.changed(described, folder) or not served.is_installed(files):
        check_replaceable(folder, first or pipeline.name, version)
    written = repository.write(described, folder, pipeline=pipeline.name, version_of=first)
    written += served.install(files)
    progress("measuring parity with the reference")
    folders = [folder / name for name in planned.model_names]
    certificate, certified = certify.install(pipeline.preprocess, folders, quantization=served.price)
    built = {pipeline.name: BuiltNetwork(served.source.name, certificate)}
    notes += memory_pool.notes(memory_pool.configs_in(folder))
    return Built(pipeline, folder, written + certified, planned.model_names, notes, built)


def _build_cascade(
    cascade: Cascade,
    *,
    folder: Path,
    onnx_files: Mapping[str, Path],
    version: int,
    beside: Path,
    named: str,
    calibration: Calibration | None,
    progress: Callable[[str], None],
) -> Built:
    first = cascade.name if version > 1 else None
    served_as = served_name(folder, cascade.name)
    if unknown := [name for name in onnx_files if name not in cascade.stages]:
        raise BadPipeline(f"{cascade.name} has no stage {unknown[0]!r}; it has {', '.join(cascade.stages)}")
    if version > 1:
        cascade = _later_version(cascade, version, folder=folder, form="python")
    networks: list[ServedNetwork] = []
    stages: list[cascade_repository.PreparedStage] = []
    in_float32: list[tuple[cascade_repository.PreparedStage, onnx.ModelProto]] = []
    notes: list[str] = []
    for name, pipeline in cascade.pipelines.items():
        try:
            served = ServedNetwork.of(
                pipeline,
                onnx_files.get(name),
                files=_files_of_stage(folder, cascade.name, name),
                served=_files_of_stage(folder, served_as, name),
                beside=beside,
                calibration=calibration,
                split_of=whole_pictures if pipeline.preprocess.region is None else partial(_regions, name, in_float32),
                progress=progress,
            )
            pipeline, own_notes = suited_to_network(_one_by_one(pipeline, served.network), served.network)
        except (BadNetwork, BadPipeline) as error:
            reason = str(error).replace("--onnx FILE", f"--onnx {name}=FILE")
            reason = reason.replace("serve it in float32", "write precision: float32 in this stage")
            raise type(error)(f"stage {name}: {reason}") from None
        networks.append(served)
        notes += [f"stage {name}: {note}" for note in own_notes]
        stages.append(_prepared(name, pipeline, served.network, served.labels))
        in_float32.append((stages[-1], served.in_float32 or served.network))
    if cascade.serving.gpu != GpuOptions() and not cascade_repository.runs_on_gpu(cascade.serving.gpu):
        notes.append(
            "serving.gpu is not used: with engine tensorrt, whose plans take pictures of one size, a cascade runs on "
            "the CPU; on a machine with a GPU it runs there with engine onnxruntime"
        )
    planned = cascade_repository.plan(cascade, stages, version_of=first)
    forms.check_left_out(planned, folder)
    described = planned.files(source=named)
    files_of = [forms.network_files(planned, _files_of_stage(folder, cascade.name, stage.name)) for stage in stages]
    are_installed = all(served.is_installed(files) for served, files in zip(networks, files_of, strict=True))
    if repository.changed(described, folder) or not are_installed:
        check_replaceable(folder, first or cascade.name, version)
    written = repository.write(described, folder, pipeline=cascade.name, version_of=first)
    built = {}
    for stage, served, files in zip(stages, networks, files_of, strict=True):
        written += served.install(files)
        progress(f"measuring parity of stage {stage.name} with the reference")
        own = [folder / one.model.name / STAGES_PARAMETER / stage.name for one in planned.served]
        folders = [*(file.parents[1] for file in files[:-1]), *(place for place in own if place.is_dir())]
        certificate, certified = certify.install(stage.definition, folders, quantization=served.price)
        written += certified
        built[stage.name] = BuiltNetwork(served.source.name, certificate)
    return Built(cascade, folder, written, planned.model_names, notes, built)


def _files_of_pipeline(folder: Path, pipeline: str) -> list[Path]:
    return [folder / f"{pipeline}_{role}" / "1" / NETWORK_FILE for role in ("model", "fused")]


def _files_of_stage(folder: Path, cascade: str, stage: str) -> list[Path]:
    return [
        folder / f"{cascade}_{stage}_model" / "1" / NETWORK_FILE,
        folder / f"{cascade}_fused" / "1" / f"{stage}.onnx",
    ]


def _prepared(
    name: str, pipeline: Pipeline, network: onnx.ModelProto, labels: str | None
) -> cascade_repository.PreparedStage:
    require_pixels_alone(network, f"stage {name} of a cascade")
    outputs, classes = served_network.outputs(network), onnx_graph.classes_of(network).count
    return cascade_repository.PreparedStage(name, pipeline, outputs, labels, classes)


def _regions(
    name: str,
    before: Sequence[tuple[cascade_repository.PreparedStage, onnx.ModelProto]],
    pipeline: Pipeline,
    network: onnx.ModelProto,
    labels: str | None,
    calibration: Calibration,
) -> Split:
    """The samples of a later stage: what those before it find in the pictures."""
    # What runs a cascade's stages is needed here alone.
    from onestream.serving.building.quantization.regions import FloatStage, split_of_stage

    suited, _ = suited_to_network(_one_by_one(pipeline, network), network)
    stages = [*before, (_prepared(name, suited, network, labels), network)]
    return split_of_stage([FloatStage(*stage) for stage in stages], calibration.pictures, pipeline.limits)


def _one_by_one(pipeline: Pipeline, network: onnx.ModelProto) -> Pipeline:
    """A stage's pipeline with batches of one where its network takes no others: regions come one by one anyway."""
    if not onnx_graph.why_not_batched(network):
        return pipeline
    return pipeline.model_copy(update={"serving": pipeline.serving.model_copy(update={"max_batch_size": 1})})


def _later_version(pipeline: _Described, version: int, *, folder: Path, form: stock.Form) -> _Described:
    """The pipeline under the name of a version.

    Raises ``BadVersion`` where it has no place in the folder, ``BadPipeline`` where the name becomes too long.
    """
    if form != "python":
        raise BadVersion(f"versions are for `onestream serve`, which the form {form} does without")
    if 1 not in built_versions(folder, pipeline.name):
        raise BadVersion(f"{folder} holds no {pipeline.name} to be version 1; build that first, without --version")
    name = version_name(pipeline.name, version)
    if (folder / name).exists() and version_of(folder, name) != pipeline.name:
        raise BadVersion(f"{folder / name} is a pipeline of its own, not version {version} of {pipeline.name}")
    return validated(type(pipeline), folder / name, dict(pipeline) | {"name": name})


def _in_precision(described: Pipeline | Cascade, precision: CpuPrecision | None) -> Pipeline | Cascade:
    """The same with another precision, where one is given."""
    if precision is None:
        return described
    serving = described.serving.model_copy(update={"precision": precision})
    return described.model_copy(update={"serving": serving})
