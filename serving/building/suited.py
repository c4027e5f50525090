"""What a build makes of a network's own nature: batches that it cannot take, and scores that it ends in."""

from __future__ import annotations

import onnx

from onestream.serving.engine import served as served_network
from onestream.serving.engine.table import ENGINES
from onestream.serving.errors import BadNetwork
from onestream.serving.graph import no_network, onnx_graph
from onestream.serving.pipeline import Pipeline


def suited_to_network(pipeline: Pipeline, served: onnx.ModelProto) -> tuple[Pipeline, list[str]]:
    """The pipeline with what its network asks for, and a line for each of that.

    Raises ``BadNetwork`` where the network cannot take the batches of the pipeline, ``BadPipeline`` where scores would
    be made of scores.
    """
    notes = []
    if reason := onnx_graph.why_not_batched(served):
        asked = pipeline.serving.max_batch_size
        if asked > 1 and "max_batch_size" in pipeline.serving.model_fields_set:
            raise BadNetwork(
                f"{reason}; serving.max_batch_size is {asked}: write 1, or leave it out, to serve one image at a time"
            )
        gpu = pipeline.serving.gpu.model_copy(update={"max_batch_size": 1})
        serving = pipeline.serving.model_copy(update={"max_batch_size": 1, "gpu": gpu})
        pipeline = pipeline.model_copy(update={"serving": serving})
        where = "on the CPU of a machine with a GPU too" if onnx_graph.outputs_vary(served) else "on a GPU too"
        notes.append(f"one image at a time, {where}: {reason}")
    outputs = served_network.outputs(served)
    if (
        no_network.is_wanted(pipeline)
        and outputs[0].dtype == "uint8"
        and not ENGINES[pipeline.serving.gpu.engine].moves_bytes
    ):
        able = next(name for name, row in ENGINES.items() if row.moves_bytes)
        notes.append(f"serving.gpu.engine: {able}, since {pipeline.serving.gpu.engine} computes nothing in uint8")
        gpu = pipeline.serving.gpu.model_copy(update={"engine": able})
        pipeline = pipeline.model_copy(update={"serving": pipeline.serving.model_copy(update={"gpu": gpu})})
    postprocess = pipeline.postprocess.suited_to(outputs)
    if postprocess != pipeline.postprocess:
        if outputs[0].activation:
            notes.append(
                f"postprocess.activation: none, since the network's output {outputs[0].name!r} comes from "
                f"{outputs[0].activation} already"
            )
        pipeline = pipeline.model_copy(update={"postprocess": postprocess})
    return pipeline, notes
