"""The network of a pipeline: where it comes from, and ready to be served."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx

from onestream.pipelines import networks
from onestream.postprocess.labels import names_in
from onestream.postprocess.network import NetworkOutput
from onestream.preprocess import BackendMissing
from onestream.preprocess.operations import Patches
from onestream.serving.building import repository
from onestream.serving.building.named_files import anchors_of, labels_of
from onestream.serving.building.onnx_process import prepare_file
from onestream.serving.building.quantization.calibration import Calibration
from onestream.serving.building.quantization.pictures import Split
from onestream.serving.engine import EngineTensor, OnnxRuntimeEngine
from onestream.serving.engine import served as served_network
from onestream.serving.engine.network_files import (
    built_from_beside,
    float_beside,
    float_network,
    tensorrt_beside,
)
from onestream.serving.engine.quantization import Quantization, Rounding, read_price
from onestream.serving.engine.table import CPU_ENGINES
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph import no_network, onnx_graph
from onestream.serving.graph.network_inputs import require_pixels_alone
from onestream.serving.pipeline import Pipeline, ServingOptions

_SOURCE_KEY = "onestream.source"
_MOST_NETWORK_BYTES = 2**31 - 1


SplitOf = Callable[[Pipeline, onnx.ModelProto, str | None, Calibration], Split]
"""Makes the samples of a calibration: of a pipeline, its network in float32, the text of its labels file."""


def whole_pictures(pipeline: Pipeline, _network: onnx.ModelProto, _labels: str | None, given: Calibration) -> Split:
    """The samples of a definition that takes whole pictures."""
    return Split.of(given.pictures, pipeline.preprocess, pipeline.limits)


@dataclass(frozen=True, slots=True)
class ServedNetwork:
    """A network that is ready to be served, what it was made of, and the labels beside it.

    ``in_float32`` is the network that one in int8 or bfloat16 was made of; None for one in float32 itself.
    ``for_tensorrt`` is the one in int8 that TensorRT takes; None where there is none.
    """

    pipeline: Pipeline
    source: NetworkSource
    network: onnx.ModelProto
    in_float32: onnx.ModelProto | None
    labels: str | None
    is_fresh: bool
    for_tensorrt: onnx.ModelProto | None = None

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        onnx_file: Path | None,
        *,
        files: Sequence[Path],
        served: Sequence[Path] = (),
        beside: Path,
        calibration: Calibration | None,
        split_of: SplitOf = whole_pictures,
        for_tensorrt: bool = False,
        progress: Callable[[str], None],
    ) -> ServedNetwork:
        """The network of a pipeline in its precision, as it was built before or made anew.

        ``files`` are where it can lie, and ``served`` those of the served version, as of ``NetworkSource.of``. One in
        int8 or bfloat16 is made anew where there is a ``calibration``, with the samples that ``split_of`` makes of its
        pictures; in int8 with ``for_tensorrt`` together with the one that TensorRT takes.
        """
        labels = labels_of(pipeline, beside)
        source = NetworkSource.of(pipeline, onnx_file, files=files, served=served, anchors=anchors_of(pipeline, beside))
        key, path = source.key(pipeline), source.path
        network = _built_before(float_network(path), key)
        is_fresh = network is None
        if network is None:
            progress(f"preparing the network {source.name}")
            network = source.prepare(pipeline, progress)
            entry = network.metadata_props.add()
            entry.key, entry.value = _SOURCE_KEY, key
        labels = pipeline.postprocess.labels_for(onnx_graph.classes_of(network), labels)
        if pipeline.serving.precision == "float32":
            _check_taken(pipeline, network)
            return cls(pipeline, source, network, None, labels, is_fresh or float_beside(path).exists())
        before = None if is_fresh or calibration else _built_before(path, key, pipeline.serving)
        if before is not None:
            signed = _built_before(tensorrt_beside(path), key, pipeline.serving)
            return cls(pipeline, source, before, network, labels, is_fresh=False, for_tensorrt=signed)
        made, signed = _in_less_precision(pipeline, network, labels, calibration, split_of, for_tensorrt, progress)
        return cls(pipeline, source, made, network, labels, is_fresh=True, for_tensorrt=signed)

    @property
    def outputs(self) -> list[NetworkOutput]:
        """What the network gives."""
        return served_network.outputs(self.network)

    @property
    def inputs(self) -> tuple[EngineTensor, ...]:
        """What the network takes beside the pixels."""
        return served_network.other_inputs(self.network)

    @property
    def price(self) -> Quantization | Rounding | None:
        """What int8 or bfloat16 costs and gains; None for a network in float32."""
        return read_price(_metadata(self.network))

    def is_installed(self, files: Sequence[Path]) -> bool:
        """Whether ``install`` would leave the network as it is."""
        return not self.is_fresh and all(file.exists() for file in files)

    def install(self, files: Sequence[Path]) -> list[Path]:
        """Put the network beside the models that run it; returns the files that changed."""
        self.source.remember(files[0])
        if self.is_installed(files):
            return []
        written = [*files]
        repository.install_network(self.network.SerializeToString(), files)
        for place, network in ((float_beside, self.in_float32), (tensorrt_beside, self.for_tensorrt)):
            beside = [place(file) for file in files]
            if network is not None:
                repository.install_network(network.SerializeToString(), beside)
                written += beside
                continue
            for file in beside:
                file.unlink(missing_ok=True)
        return written


@dataclass(frozen=True, slots=True)
class NetworkSource:
    """The source of the network, a key that changes when it does, and the ``path`` where it was built before."""

    name: str
    file: Path | None
    anchors: npt.NDArray[Any] | None
    path: Path

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        onnx_file: Path | None,
        *,
        files: Sequence[Path],
        served: Sequence[Path] = (),
        anchors: npt.NDArray[Any] | None,
    ) -> NetworkSource:
        """The file that is given, else the built-in network that the pipeline names, else the file of the last build.

        ``files`` are where the network can lie: the first that is there was built before. ``served`` are those of the
        version that is served, whose file a new version takes.

        Raises ``BadNetwork`` for a file that is not there or too large, ``BadPipeline`` where there is neither.
        """
        path = next((file for file in files if file.exists()), files[0])
        if onnx_file is None and pipeline.network is None:
            onnx_file = _last_file([path, *served])
        if onnx_file is not None:
            if not onnx_file.is_file():
                raise BadNetwork(f"{onnx_file}: no such file")
            if onnx_file.stat().st_size > _MOST_NETWORK_BYTES:
                raise BadNetwork(
                    f"{onnx_file}: above 2 GiB, which ONNX does not take; keep its weights in files beside it"
                )
            return cls(str(onnx_file), onnx_file, anchors, path)
        if pipeline.network is None:
            raise BadPipeline("the pipeline names no built-in network; give its file: --onnx FILE")
        name = pipeline.network if isinstance(pipeline.network, str) else "none, patches"
        return cls(name, None, anchors, path)

    def remember(self, network: Path) -> None:
        """Write down the file beside the network: what is changed in the YAML then needs no ``--onnx`` again."""
        note = built_from_beside(network)
        if self.file is None:
            note.unlink(missing_ok=True)
        else:
            note.write_text(f"{self.file.absolute()}\n", encoding="utf-8")

    def key(self, pipeline: Pipeline) -> str:
        """SHA-256 of everything that the served network is made of, in hexadecimal."""
        content = self.name.encode() if self.file is None else self.file.read_bytes()
        key = content + pipeline.preprocess.digest.encode()
        if isinstance(pipeline.network, Patches):
            key += pipeline.network.model_dump_json().encode()
        if pipeline.postprocess.network_gives:
            key += pipeline.postprocess.model_dump_json().encode()
        if self.anchors is not None:
            key += self.anchors.tobytes()
        if pipeline.network_outputs is not None:
            key += ",".join(pipeline.network_outputs).encode()
        if pipeline.network_inputs:
            key += json.dumps(pipeline.network_inputs).encode()
        return hashlib.sha256(key).hexdigest()

    def prepare(self, pipeline: Pipeline, progress: Callable[[str], None]) -> onnx.ModelProto:
        """The served network; raises as ``onnx_graph.prepare``. ``progress`` receives a line before each download."""
        if self.file is not None:
            return prepare_file(
                self.file,
                pipeline.preprocess,
                pipeline.postprocess,
                inputs=pipeline.network_inputs,
                outputs=pipeline.network_outputs,
                anchors=self.anchors,
            )
        return onnx_graph.prepare(
            _network_of(pipeline, progress),
            pipeline.preprocess,
            pipeline.postprocess,
            inputs=pipeline.network_inputs,
            outputs=pipeline.network_outputs,
            anchors=self.anchors,
        )


def _network_of(pipeline: Pipeline, progress: Callable[[str], None]) -> onnx.ModelProto:
    assert pipeline.network is not None
    if pipeline.network == "none":
        return no_network.of_pixels(pipeline.preprocess)
    if isinstance(pipeline.network, Patches):
        return no_network.of_patches(pipeline.preprocess, pipeline.network)
    return networks.load(pipeline.network, progress)


def _last_file(networks: Sequence[Path]) -> Path | None:
    """The file that the first of these was built from that knows one; None without. Raises ``BadNetwork``."""
    note = next((note for network in networks if (note := built_from_beside(network)).exists()), None)
    if note is None:
        return None
    file = Path(note.read_text(encoding="utf-8").removesuffix("\n"))
    if not file.is_file():
        raise BadNetwork(f"{file}, from which the network was built last, is gone; give its file: --onnx FILE")
    return file


def _built_before(path: Path, key: str, serving: ServingOptions | None = None) -> onnx.ModelProto | None:
    """A network with this key in the precision that options name, measured with their engine; or in float32."""
    if not path.exists():
        return None
    try:
        model = onnx_graph.load(path)
    except BadNetwork:
        return None
    metadata = _metadata(model)
    price = read_price(metadata)
    found = None if price is None else (price.precision, price.engine)
    wanted = None if serving is None else (serving.precision, serving.cpu.engine)
    return model if (metadata.get(_SOURCE_KEY), found) == (key, wanted) else None


def _metadata(model: onnx.ModelProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in model.metadata_props}


def _check_taken(pipeline: Pipeline, network: onnx.ModelProto) -> None:
    """Raise ``BadNetwork`` where the engine of a CPU does not take a network. Less precision is measured with it."""
    engine = CPU_ENGINES[pipeline.serving.cpu.engine].on_cpu()
    # ONNX Runtime ran it when it was prepared, and the machine that builds need not have the others.
    if engine is not OnnxRuntimeEngine:
        with suppress(BackendMissing):
            engine(network.SerializeToString(), threads=pipeline.serving.cpu_threads)


def _in_less_precision(
    pipeline: Pipeline,
    network: onnx.ModelProto,
    labels: str | None,
    calibration: Calibration | None,
    split_of: SplitOf,
    for_tensorrt: bool,
    progress: Callable[[str], None],
) -> tuple[onnx.ModelProto, onnx.ModelProto | None]:
    """The same network in the pipeline's precision, and the one for TensorRT, where there is one.

    Raises ``BadPipeline`` where there is nothing to measure it with.
    """
    require_pixels_alone(network, f"serving.precision {pipeline.serving.precision}")
    if calibration is None:
        raise BadPipeline(
            f"serving.precision is {pipeline.serving.precision}, and this network was not calibrated before with "
            f"engine {pipeline.serving.cpu.engine}: give pictures like those that will be served: --calibrate PHOTOS"
        )
    # What the labels and outputs must be, before anything takes long.
    repository.answer_of(pipeline.postprocess, pipeline.preprocess, served_network.outputs(network), labels)
    names = None if labels is None else names_in(labels)
    progress("taking the pictures through the definition")
    split = split_of(pipeline, network, labels, calibration)
    # They take a second to import, which nothing else needs.
    if pipeline.serving.precision == "bf16":
        from onestream.serving.building.quantization.bfloat16 import in_bfloat16

        return in_bfloat16(pipeline, network, split, labels=names, calibration=calibration, progress=progress), None
    from onestream.serving.building.quantization.search import quantize

    made = quantize(
        pipeline,
        network,
        split,
        labels=names,
        calibration=calibration,
        for_tensorrt=for_tensorrt,
        progress=progress,
    )
    return made.network, made.for_tensorrt
