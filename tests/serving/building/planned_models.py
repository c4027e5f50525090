"""What a build would write of a pipeline's models, and say of its network, without a build."""

from __future__ import annotations

from pathlib import Path

import onnx

from onestream.serving.building import pipeline_repository
from onestream.serving.building.dali_backend import repository as stock
from onestream.serving.building.suited import suited_to_network
from onestream.serving.built.triton_config import ModelConfig, from_text
from onestream.serving.engine import served as served_network
from onestream.serving.graph import onnx_graph
from onestream.serving.pipeline import Pipeline


def written(file: Path, model: onnx.ModelProto, form: stock.Form = "python") -> tuple[Path, list[str]]:
    """The folder into which everything but networks and certificates was written, and the notes of the build."""
    described = Pipeline.from_file(file)
    options = {"inputs": described.network_inputs, "outputs": described.network_outputs}
    network = onnx_graph.prepare(model, described.preprocess, described.postprocess, **options)
    pipeline, notes = suited_to_network(described, network)
    if form == "python":
        outputs, inputs = served_network.outputs(network), served_network.other_inputs(network)
        vary = onnx_graph.outputs_vary(network)
        planned = pipeline_repository.plan(pipeline, outputs, inputs=inputs, outputs_vary=vary, labels=None)
        files = planned.files(source=file.name)
    else:
        files = stock.plan(pipeline, network, labels=None).files(source=file.name)
    folder = file.parent / form
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder, notes


def config(folder: Path, model: str, *, on_cpu: bool = False) -> ModelConfig:
    """The configuration of a model, of a machine with a GPU where there is none for CPUs."""
    path = folder / model / "configs" / "cpu.pbtxt"
    path = path if on_cpu and path.exists() else folder / model / "config.pbtxt"
    return from_text(path.read_text(encoding="utf-8"))
