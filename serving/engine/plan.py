"""Builds a TensorRT plan of an ONNX file: profiles over the batch, strongly typed, everything on one stream."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from onestream.serving.engine.cuda_graphs import tuned_sizes
from onestream.serving.engine.library import IS_RTX, LOG, TITLE, capability_name, plain, trt
from onestream.serving.engine.precision import to_float16
from onestream.serving.engine.served import cast_first, load_served
from onestream.serving.errors import BadNetwork, BadPlan
from onestream.serving.pipeline import Precision

Capability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The batch sizes, GPU and options that a plan is built for.

    ``max_batch_size``: the largest batch that it takes; every size from 1 on works, and it is tuned for those of
    ``cuda_graphs.tuned_sizes``. ``precision``: of weights and activations: *fp32* is float32; in *tf32* sums of
    products are computed from 10-bit mantissas, which is NVIDIA's own default; *fp16* is
    ``onestream.serving.engine.precision``; *int8* takes a network that was quantized for TensorRT, and is float32 where
    that is.
    ``version_compatible``: whether later TensorRT versions of the same major number can load it; TensorRT for RTX
    cannot build that.
    """

    max_batch_size: int
    precision: Precision = "fp32"
    version_compatible: bool = False


@dataclass(frozen=True, slots=True)
class BuiltPlan:
    """A plan, and what was learned about the speed of kernels, which makes the next build faster."""

    plan: bytes
    timing_cache: bytes


def build_plan(
    model: bytes,
    options: PlanOptions,
    *,
    compute_capability: Capability,
    timing_cache: bytes = b"",
    progress: Callable[[str], None] = lambda _: None,
) -> BuiltPlan:
    """Build the plan of a served network (``serving.graph.onnx_graph``) for one compute capability, such as (8, 9).

    TensorRT needs a GPU of that capability in this machine; TensorRT for RTX needs none. A ``timing_cache`` of another
    version or GPU is ignored. ``progress`` is called with a line before each long step.

    Raises ``BadNetwork`` where TensorRT cannot take the network, naming the node; ``BadPlan`` where it cannot build.
    """
    prepared = _prepare(model, options, progress)
    progress(
        f"building a TensorRT plan: {options.precision}, batches of 1 to {options.max_batch_size}, "
        f"compute capability {capability_name(compute_capability)}, {TITLE}"
    )
    if options.precision == "fp32":
        progress(
            "float32 leaves tensor cores idle; serving.gpu.precision: tf32 or fp16 uses them, with 10-bit mantissas "
            "(docs/gpu.md#precision)"
        )
    LOG.take()
    try:
        builder = trt.Builder(LOG)
    except TypeError:  # what its bindings make of a null pointer
        raise BadPlan(f"{TITLE} cannot build here: {LOG.take()}") from None
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    _parse(prepared, network)
    config = configure(builder, options, compute_capability=compute_capability)
    for profile in batch_profiles(builder, network, options):
        if config.add_optimization_profile(profile) < 0:
            raise BadPlan(f"{TITLE} refuses batches of 1 to {options.max_batch_size}: {LOG.take()}")
    with warnings.catch_warnings():
        # TensorRT for RTX does not time kernels; it keeps these calls and says that they do nothing.
        warnings.simplefilter("ignore", DeprecationWarning)
        cache = config.create_timing_cache(timing_cache)
        if not config.set_timing_cache(cache, ignore_mismatch=False):
            cache = config.create_timing_cache(b"")
            config.set_timing_cache(cache, ignore_mismatch=False)
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise BadPlan(f"{TITLE} cannot build the network: {LOG.take()}")
        return BuiltPlan(bytes(plan), bytes(cache.serialize()))


def configure(builder: trt.Builder, options: PlanOptions, *, compute_capability: Capability) -> trt.IBuilderConfig:
    """The builder's settings, without the profile. Raises ``BadPlan`` where TensorRT for RTX does not have them."""
    config = builder.create_builder_config()
    # Auxiliary streams would run parts of a network beside the stream that it is queued on.
    config.max_aux_streams = 0
    if options.precision != "tf32":
        config.clear_flag(trt.BuilderFlag.TF32)
    if options.version_compatible:
        if IS_RTX:
            raise BadPlan(f"{TITLE} has no version-compatible plans; build without that option, or with TensorRT")
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    if IS_RTX:
        config.num_compute_capabilities = 1
        config.set_compute_capability(_rtx_capability(compute_capability), 0)
    return config


def batch_profiles(
    builder: trt.Builder, network: trt.INetworkDefinition, options: PlanOptions
) -> list[trt.IOptimizationProfile]:
    """The shapes of the inputs that a plan takes, of one size and a range of batches, and those to tune for.

    Every profile takes every batch: Triton's backend records each CUDA graph in each profile, and one that did not take
    a size would write errors into the log.
    """
    inputs, largest = [network.get_input(index) for index in range(network.num_inputs)], options.max_batch_size
    profiles = []
    for tuned in tuned_sizes(largest):
        profile = builder.create_optimization_profile()
        for each in inputs:
            dims = tuple(each.shape)[1:]
            profile.set_shape(each.name, (1, *dims), (tuned, *dims), (largest, *dims))
        profiles.append(profile)
    return profiles


def rtx_capabilities() -> dict[Capability, trt.ComputeCapability]:
    """The compute capabilities that the installed TensorRT for RTX builds for."""
    named = {name: value for name, value in trt.ComputeCapability.__members__.items() if name.startswith("SM")}
    return {(int(name[2:-1]), int(name[-1])): value for name, value in named.items()}


def _rtx_capability(capability: Capability) -> trt.ComputeCapability:
    known = rtx_capabilities()
    if capability not in known:
        names = ", ".join(capability_name(each) for each in sorted(known))
        raise BadPlan(
            f"{TITLE} builds for compute capability {names}; got {capability_name(capability)}. "
            "Data-centre GPUs such as H100 (9.0) need TensorRT itself"
        )
    return known[capability]


def _prepare(model: bytes, options: PlanOptions, progress: Callable[[str], None]) -> bytes:
    loaded = load_served(model)
    if options.precision == "fp16":
        progress("converting the network to float16")
        loaded = to_float16(loaded)
    if options.precision == "int8" and not any(node.op_type == "QuantizeLinear" for node in loaded.graph.node):
        raise BadNetwork(
            "precision int8 takes a network that onestream build made for it; this one has nothing in int8"
        )
    return bytes(cast_first(loaded).SerializeToString())


def _parse(model: bytes, network: trt.INetworkDefinition) -> None:
    parser = trt.OnnxParser(network, LOG)
    if parser.parse(model):
        return
    reasons = []
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        where = f"node {error.node_name()!r} ({error.node_operator()})" if error.node_operator() else "the file"
        reasons.append(f"{where}: {_reason(error)}")
    raise BadNetwork(f"{TITLE} cannot take the network: {'; '.join(reasons) or LOG.take()}")


def _reason(error: trt.ParserError) -> str:
    """The parser's message, which for an operator that it lacks is only the check that failed, in C++."""
    kind = error.code().name.lower().replace("_", " ")
    lines = [line for line in error.desc().splitlines() if line.strip()]
    # The first line of several names the node once more.
    text = plain(lines[1] if len(lines) > 1 else "".join(lines))
    return kind if text in ("", "false") else f"{kind}: {text}"
