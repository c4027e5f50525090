"""The precision in which a machine with a GPU runs the network of a pipeline that a CPU runs in int8."""

from __future__ import annotations

from onestream.serving.building.network_source import ServedNetwork
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
    if serving.gpu.engine != "tensorrt":
        raise BadPipeline(f"serving.gpu.precision int8 is for engine tensorrt; got {serving.gpu.engine}")


def has_plans(pipeline: Pipeline) -> bool:
    """Whether a machine with a GPU runs the network by TensorRT, whose plans take pictures of one size."""
    return pipeline.serving.gpu.engine == "tensorrt" and None not in pipeline.preprocess.output_spec.size_hw


def decided(pipeline: Pipeline, served: ServedNetwork) -> tuple[Pipeline, list[str]]:
    """The pipeline with the precision that a GPU runs it in, and of one in int8 a line that says it.

    Raises ``BadNetwork`` or ``BadPipeline`` where the file asks for int8 and there is no network for that.
    """
    asked, price = pipeline.serving.gpu.precision, served.quantization
    if asked not in ("auto", "int8"):
        return pipeline, []
    tried = price.tensorrt if price is not None and has_plans(pipeline) else None
    if tried is not None and served.for_tensorrt is not None:
        note = f"on a GPU TensorRT runs it in int8: {tried.agreement}, as ONNX Runtime computes it"
        return _in_precision(pipeline, "int8"), [note]
    if price is not None and tried is not None and tried.agreement.share < price.min_agreement:
        too_much = (
            f"int8 for TensorRT would cost too much: {tried.agreement}, and min_agreement is {price.min_agreement:g}. "
            f"The nearest setting was {tried.settings}"
        )
        if asked == "int8":
            raise BadNetwork(f"{too_much}. Nothing was installed; leave serving.gpu.precision out, or take fp16")
        return _in_precision(pipeline, "fp32"), [f"on a GPU it runs in float32: {too_much}"]
    if asked == "int8":
        raise BadPipeline(
            f"serving.gpu.precision of {pipeline.name} is int8, and there is no network for it: a plan of TensorRT "
            "takes pictures of one size, and its network is calibrated for it: --calibrate PHOTOS"
        )
    return _in_precision(pipeline, "fp32"), []


def _in_precision(pipeline: Pipeline, precision: Precision) -> Pipeline:
    gpu = pipeline.serving.gpu.model_copy(update={"precision": precision})
    return pipeline.model_copy(update={"serving": pipeline.serving.model_copy(update={"gpu": gpu})})
