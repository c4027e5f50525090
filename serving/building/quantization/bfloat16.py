"""A network in bfloat16: float32's file, which an engine computes in bfloat16, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from onnx import helper

from onestream.serving.building.quantization.calibration import Calibration
from onestream.serving.building.quantization.pictures import Split
from onestream.serving.building.quantization.referee import TIMING_S, Referee
from onestream.serving.built.here import medians_ms
from onestream.serving.engine.quantization import COMPUTED_IN, Rounding, this_processor
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.pipeline import Pipeline


def in_bfloat16(
    pipeline: Pipeline,
    served: onnx.ModelProto,
    split: Split,
    *,
    labels: Sequence[str] | None,
    calibration: Calibration,
    progress: Callable[[str], None] = lambda _: None,
) -> onnx.ModelProto:
    """A pipeline's served network with the entries by which an engine computes in bfloat16 and with its ``Rounding``.

    Nothing is calibrated: all pictures of ``split`` measure. ``labels`` are the names of its classes. Raises
    ``BadPipeline`` where the engine or this processor does not compute in bfloat16, or the pictures or their labels do
    not serve, and ``BadNetwork`` where too few answers stay as in float32.
    """
    rounded = onnx.ModelProto()
    rounded.CopyFrom(served)
    _add(rounded, {COMPUTED_IN: "bf16"})
    all_held_out = split.all_held_out()
    referee = Referee(pipeline, served, all_held_out.held_out, labels, calibration, precision="bf16")
    engine = referee.open(rounded)
    if engine.computes_in != "bf16":
        raise BadPipeline(
            f"serving.cpu.engine {pipeline.serving.cpu.engine} does not compute in bfloat16 on this processor, "
            f"{this_processor()}; bf16 is for processors with avx512_bf16 or amx_bf16"
        )
    progress("comparing bfloat16 with float32")
    agreement = referee.agreement(engine)
    float_ms, ms = medians_ms([referee.engine, engine], referee.pixels, budget_s=TIMING_S)
    if not agreement.share >= calibration.min_agreement:
        raise BadNetwork(
            f"bf16 would cost too much: {agreement}, and min_agreement is {calibration.min_agreement:g}. Nothing was "
            "installed; serve it in float32"
        )
    price = Rounding(
        engine=pipeline.serving.cpu.engine,
        pictures=all_held_out.described(),
        labels_sha256=referee.labels_sha256,
        min_agreement=calibration.min_agreement,
        agreement=agreement,
        speed=referee.speed(float_ms, ms),
    )
    _add(rounded, price.entry())
    return rounded


def _add(network: onnx.ModelProto, entries: dict[str, str]) -> None:
    helper.set_model_props(network, {entry.key: entry.value for entry in network.metadata_props} | entries)
