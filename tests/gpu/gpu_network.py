"""The default pipeline's network for the GPU suite, built where it is not there."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import gpu_engines

from onestream.preprocess import PreprocessError
from onestream.preprocess.cuda.device import Device
from onestream.serving.engine import DeviceEngine, open_engine
from onestream.serving.errors import ServingError
from onestream.serving.pipeline import GpuOptions

ROOT = Path(__file__).parents[2]


@cache
def served_network() -> bytes:
    """The ONNX of the default pipeline as it is served, stamped."""
    built = ROOT / "model_repository" / "classify_fused" / "1" / "model.onnx"
    if built.exists():
        return built.read_bytes()
    from onestream.pipelines.networks.efficientnet_lite import export_efficientnet_lite0, fetch_weights
    from onestream.pipelines.networks.legacy_pickle import read_legacy_checkpoint
    from onestream.serving.graph import onnx_graph
    from onestream.serving.pipeline import Pipeline

    definition = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml").preprocess
    exported = export_efficientnet_lite0(read_legacy_checkpoint(fetch_weights()))
    return bytes(onnx_graph.prepare(exported, definition).SerializeToString())


@cache
def fused() -> bytes:
    """The same with the pipeline's postprocessing at its end."""
    import onnx

    from onestream.serving.graph.onnx_postprocess import with_postprocess
    from onestream.serving.pipeline import Pipeline

    postprocess = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml").postprocess
    extended = with_postprocess(onnx.load_from_string(served_network()), postprocess)
    return bytes(extended.SerializeToString(deterministic=True))


def any_engine(device: Device, options: GpuOptions, record: Callable[..., None]) -> DeviceEngine:
    """The network with its postprocessing by TensorRT, ONNX Runtime or PyTorch, the first that is there."""
    opened: DeviceEngine | None = None
    for name in gpu_engines.NAMES:
        if opened is None:
            try:
                opened = open_engine(fused(), options.model_copy(update={"engine": name}), device)
            except (PreprocessError, ServingError) as reason:
                record(f"{name} cannot be used", str(reason))
    if opened is None:
        from benchmarks.gpu.torch_engine import TorchEngine

        opened = TorchEngine(fused(), device, max_batch_size=options.max_batch_size)
    record("engine", gpu_engines.ran(opened))
    return opened
