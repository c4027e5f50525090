"""Stubs of ``tensorrt_rtx``, and of ``tensorrt``, which differs in few members and cannot be imported everywhere."""

from __future__ import annotations

import ast
import copy
import importlib.metadata
from pathlib import Path

from make_stubs.pybind import Source, imports, read
from make_stubs.syntax import check_known, member_name, names_in, paths_in, write

_OVERLOADS = "@overload\n{}\n@overload\n{}"
_RECORDER = "error_recorder: IErrorRecorder | None"
_FLAG = "def {}(self, flag: {}) -> {}: ..."
_ADD_INPUT = "def add_input(self, name: str, dtype: DataType, shape: Dims | Sequence[int]) -> ITensor | None: ..."
_SET_SHAPE = (
    "def set_shape(self, input: str, min: Dims | Sequence[int], opt: Dims | Sequence[int], max: Dims | Sequence[int])"
    " -> None: ..."
)

SOURCE = Source(
    module="tensorrt_rtx_bindings.tensorrt_rtx",
    keep=(
        *("Builder", "BuilderFlag", "ComputeCapability", "CudaGraphStrategy", "DataType", "Dims"),
        *("DynamicShapesKernelSpecializationStrategy", "EngineCapability", "EngineInspector", "EngineStat"),
        *("ErrorCode", "ErrorCodeTRT", "ExecutionContextAllocationStrategy", "HardwareCompatibilityLevel"),
        *("IBuilderConfig", "ICastLayer", "ICudaEngine", "IErrorRecorder", "IExecutionContext", "IHostMemory"),
        *("IIdentityLayer", "ILayer", "ILogger", "INetworkDefinition", "IOptimizationProfile", "IProfiler"),
        *("IProgressMonitor", "IRuntimeCache", "IRuntimeConfig", "ISerializationConfig", "ITensor", "ITimingCache"),
        *("LayerInformationFormat", "LayerType", "Logger", "MemoryPoolType", "NetworkDefinitionCreationFlag"),
        *("OnnxParser", "OnnxParserFlag", "ParserError", "PreviewFeature", "ProfilingVerbosity", "Runtime"),
        *("RuntimePlatform", "SerializationFlag", "TensorFormat", "TensorIOMode", "TensorLocation"),
        *("TilingOptimizationLevel", "TimingCacheKey"),
    ),
    spelling={
        r"\bin: ": "input: ",
        r"(channel_axis: typing\.SupportsInt)\)": r"\1 = ...)",
    },
    mends={
        # None is what these return on failure, as their docstrings and the C++ interface say.
        "Builder.build_serialized_network": (
            "def build_serialized_network(self, network: INetworkDefinition, config: IBuilderConfig)"
            " -> IHostMemory | None: ..."
        ),
        "ICudaEngine.create_execution_context": _OVERLOADS.format(
            "def create_execution_context(self, strategy: ExecutionContextAllocationStrategy = ...)"
            " -> IExecutionContext | None: ...",
            "def create_execution_context(self, runtime_config: IRuntimeConfig | None = None)"
            " -> IExecutionContext | None: ...",
        ),
        "Runtime.deserialize_cuda_engine": (
            "def deserialize_cuda_engine(self, serialized_engine: Buffer) -> ICudaEngine | None: ..."
        ),
        "Runtime.load_runtime": "def load_runtime(self, path: str) -> Runtime | None: ...",
        "IBuilderConfig.get_timing_cache": "def get_timing_cache(self) -> ITimingCache | None: ...",
        "IBuilderConfig.progress_monitor": "progress_monitor: IProgressMonitor | None",
        "IExecutionContext.profiler": "profiler: IProfiler | None",
        "INetworkDefinition.add_input": _ADD_INPUT,
        "INetworkDefinition.add_cast": (
            "def add_cast(self, input: ITensor, to_type: DataType) -> ICastLayer | None: ..."
        ),
        "INetworkDefinition.add_identity": "def add_identity(self, input: ITensor) -> IIdentityLayer | None: ...",
        **{
            f"{name}.error_recorder": _RECORDER
            for name in (
                "Builder",
                "EngineInspector",
                "ICudaEngine",
                "IExecutionContext",
                "INetworkDefinition",
                "Runtime",
            )
        },
        # Names of C++ that pybind11 could not translate.
        **{
            f"OnnxParser.{name}": _FLAG.format(name, "OnnxParserFlag", result)
            for name, result in {"clear_flag": "None", "get_flag": "bool", "set_flag": "None"}.items()
        },
        "OnnxParser.get_error": "def get_error(self, index: int) -> ParserError: ...",
        "OnnxParser.get_subgraph_nodes": "def get_subgraph_nodes(self, index: int) -> list[int]: ...",
        "INetworkDefinition.get_flag": _FLAG.format("get_flag", "NetworkDefinitionCreationFlag", "bool"),
        "INetworkDefinition.builder": "@property\ndef builder(self) -> Builder: ...",
        "IExecutionContext.engine": "@property\ndef engine(self) -> ICudaEngine: ...",
        "IExecutionContext.nvtx_verbosity": "nvtx_verbosity: ProfilingVerbosity",
        "ICudaEngine.hardware_compatibility_level": (
            "@property\ndef hardware_compatibility_level(self) -> HardwareCompatibilityLevel: ..."
        ),
        "ICudaEngine.profiling_verbosity": "@property\ndef profiling_verbosity(self) -> ProfilingVerbosity: ...",
        "IRuntimeConfig.create_runtime_cache": "def create_runtime_cache(self) -> IRuntimeCache: ...",
        "IRuntimeConfig.get_runtime_cache": "def get_runtime_cache(self) -> IRuntimeCache | None: ...",
        "IRuntimeConfig.set_runtime_cache": (
            "def set_runtime_cache(self, cache: IRuntimeCache | None = None) -> bool: ..."
        ),
        # The same as that of ILogger, which Logger inherits.
        "Logger.Severity": "",
        # Shapes: pybind11 converts sequences.
        "Dims.__eq__": "def __eq__(self, other: object, /) -> bool: ...",
        "Dims.__hash__": "",
        "Dims.__getitem__": _OVERLOADS.format(
            "def __getitem__(self, index: int, /) -> int: ...",
            "def __getitem__(self, index: slice, /) -> tuple[int, ...]: ...",
        ),
        "Dims.__setitem__": "def __setitem__(self, index: int, value: int, /) -> None: ...",
        "IExecutionContext.set_input_shape": (
            "def set_input_shape(self, name: str, shape: Dims | tuple[int, ...] | list[int]) -> bool: ..."
        ),
        "IOptimizationProfile.set_shape": _SET_SHAPE,
        "IErrorRecorder.MAX_DESC_LENGTH": "@property\ndef MAX_DESC_LENGTH(self) -> int: ...",
        # Set by the package in Python; None for E8M0, which no network here uses.
        "DataType.itemsize": "@property\ndef itemsize(self) -> float: ...",
    },
    added={
        "Dims": "def __iter__(self) -> Iterator[int]: ...",
        "IHostMemory": "def __buffer__(self, flags: int, /) -> memoryview: ...",
    },
    imports=("import numpy as np",),
    tail=(
        "def nptype(trt_type: DataType) -> type[np.generic]: ...\n"
        "def volume(iterable: Iterable[int]) -> int: ...\n"
        "def get_nv_onnx_parser_version() -> int: ...\n"
        "__version__: str\n"
    ),
)

# From the sources of TensorRT's own bindings, github.com/NVIDIA/TensorRT, release 11.1, python/src: the members of the
# kept classes that are defined only in the other library. The names of arguments agree.
ONLY_RTX = {
    *("ComputeCapability", "CudaGraphStrategy", "DynamicShapesKernelSpecializationStrategy", "IRuntimeCache"),
    "BuilderFlag.REQUIRE_USER_ALLOCATION",
    *(f"IBuilderConfig.{name}" for name in ("get_compute_capability", "num_compute_capabilities")),
    "IBuilderConfig.set_compute_capability",
    *(f"ICudaEngine.{name}" for name in ("load_weights", "unload_weights", "weights_loaded")),
    "IExecutionContext.is_stream_capturable",
    "IOptimizationProfile.profile_stream",
    *(f"IRuntimeConfig.{name}" for name in ("create_runtime_cache", "get_runtime_cache", "set_runtime_cache")),
    *(f"IRuntimeConfig.{name}" for name in ("cuda_graph_strategy", "dynamic_shapes_kernel_specialization_strategy")),
    *(f"Runtime.{name}" for name in ("defer_weights_loading", "engine_header_size")),
}
ONLY_TENSORRT = {
    "Builder": (
        "def build_engine_with_config(self, network: INetworkDefinition, config: IBuilderConfig)"
        " -> ICudaEngine | None: ..."
    ),
    "IBuilderConfig": "remote_auto_tuning_config: str",
    "NetworkDefinitionCreationFlag": (
        "PREFER_AOT_PYTHON_PLUGINS: ClassVar[NetworkDefinitionCreationFlag]\n"
        "PREFER_JIT_PYTHON_PLUGINS: ClassVar[NetworkDefinitionCreationFlag]"
    ),
}


def generate(target: Path) -> None:
    """Write ``tensorrt_rtx/__init__.pyi`` and ``tensorrt/__init__.pyi`` under ``target``."""
    tree, left_out = read(SOURCE)
    version = importlib.metadata.version("tensorrt-rtx-cu12")
    head = [f"From the wheel tensorrt-rtx-cu12 {version} (its Python part Apache-2.0, NVIDIA), by `make stubs`."]
    if left_out:
        head.append("Left out, with types that are not here: " + ", ".join(dict.fromkeys(left_out)) + ".")
    write(target / "tensorrt_rtx" / "__init__.pyi", head, tree)
    head = [f"TensorRT 11.1 where it differs from tensorrt_rtx {version}, which has the rest, by `make stubs`."]
    write(target / "tensorrt" / "__init__.pyi", head, for_tensorrt(tree))


def for_tensorrt(tree: ast.Module) -> ast.Module:
    """TensorRT's stub: what differs from that of TensorRT for RTX is written, and the rest is imported from there.

    Raises ``KeyError`` where a difference is no longer one.
    """
    check_known(ONLY_RTX, paths_in(tree), "the list of what only TensorRT for RTX has")
    members = [node for node in copy.deepcopy(tree).body if member_name(node) not in {None, *ONLY_RTX}]
    differing = {path.partition(".")[0] for path in ONLY_RTX} | set(ONLY_TENSORRT)
    for node in members:
        if isinstance(node, ast.ClassDef):
            node.body = [member for member in node.body if f"{node.name}.{member_name(member)}" not in ONLY_RTX]
            node.body += ast.parse(ONLY_TENSORRT.get(node.name, "")).body
    # A class that names another one takes the one of its own library.
    while more := {member_name(node) for node in members if names_in(node) & differing} - differing:
        differing |= {name for name in more if name is not None}
    own = [node for node in members if member_name(node) in differing]
    names = [member_name(node) for node in members if member_name(node) not in differing]
    shared = [f"from tensorrt_rtx import {name} as {name}" for name in names]
    return ast.Module([*imports(own, shared), *own], [])
