"""The precision in which a machine with a GPU runs the network of a pipeline that a CPU runs in int8."""

from __future__ import annotations

from onestream.serving.building.network_source import ServedNetwork
from onestream.serving.engine.quantization import Quantization
from onestream.serving.engine.table import CPU_ENGINES, ENGINES, names_of
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.pipeline import Pipeline, Precision, ServingOptions


def check(serving: ServingOptions) -> None:
    """Raise ``BadPipeline`` where a GPU is to run a network in int8 and there can be none for it."""
    if serving.gpu.precision != "int8":
        return
    if serving.precision != "int8":
        raise BadPipeline(
            "serving.gpu.precision int8 goes with serving.precision int8, which calibrates both; got "
            f"{serving.precision}"
        )
    if "int8" not in ENGINES[serving.gpu.engine].precisions:
        raise BadPipeline(f"serving.gpu.precision int8 is for engine {_in_int8()}; got {serving.gpu.engine}")


def has_plans(pipeline: Pipeline) -> bool:
    """Whether a machine with a GPU runs the network by a plan, which takes pictures of one size."""
    return ENGINES[pipeline.serving.gpu.engine].needs_plan and None not in pipeline.preprocess.output_spec.size_hw


def decided(pipeline: Pipeline, served: ServedNetwork) -> tuple[Pipeline, list[str]]:
    """The pipeline with the precision that a GPU runs it in, and of one in int8 a line that says it.

    Raises ``BadNetwork`` where the file asks for int8 and there is no network for that.
    """
    asked, price = pipeline.serving.gpu.precision, served.price
    if asked not in ("auto", "int8"):
        return pipeline, []
    if not isinstance(price, Quantization):
        return _in_precision(pipeline, "fp32"), []
    if price.tensorrt is not None and served.for_tensorrt is not None and has_plans(pipeline):
        computed = f"as {CPU_ENGINES[price.engine].title} computes it"
        note = f"on a GPU TensorRT runs it in int8: {price.tensorrt.agreement}, {computed}"
        return _in_precision(pipeline, "int8"), [note]
    reason = _why_not(pipeline, price)
    if asked == "int8":
        raise BadNetwork(
            f"serving.gpu.precision is int8, and there is no network for it: {reason}. Nothing was "
            "installed; leave serving.gpu.precision out, or take fp16"
        )
    return _in_precision(pipeline, "fp32"), [f"on a GPU it runs in float32: {reason}"]


def _why_not(pipeline: Pipeline, price: Quantization) -> str:
    """Why a pipeline whose network is in int8 on a CPU has none in int8 for a GPU."""
    if "int8" not in ENGINES[pipeline.serving.gpu.engine].precisions:
        return f"int8 there is for engine {_in_int8()}, and serving.gpu.engine is {pipeline.serving.gpu.engine}"
    if not has_plans(pipeline):
        return "a plan of TensorRT takes pictures of one size"
    if price.why_no_tensorrt:
        return price.why_no_tensorrt
    if price.tensorrt is None or price.tensorrt.agreement.share >= price.min_agreement:
        return "there is no network that was calibrated for TensorRT; calibrate again: --calibrate PHOTOS"
    return (
        f"int8 for TensorRT would cost too much: {price.tensorrt.agreement}, and min_agreement is "
        f"{price.min_agreement:g}. The nearest setting was {price.tensorrt.settings}"
    )


def _in_int8() -> str:
    return names_of(lambda engine: "int8" in engine.precisions)


def _in_precision(pipeline: Pipeline, precision: Precision) -> Pipeline:
    gpu = pipeline.serving.gpu.model_copy(update={"precision": precision})
    return pipeline.model_copy(update={"serving": pipeline.serving.model_copy(update={"gpu": gpu})})
