"""Stubs of ``cuda.core`` from the ``.pyi`` files in its wheel, which mypy does not find there.

The wheel keeps its modules in ``cuda/core/cu12`` and ``cu13`` and joins them to ``cuda.core`` at import. Here they lie
where they are imported from, cut down to the classes in ``KEPT``.
"""

from __future__ import annotations

import ast
import importlib.metadata
from pathlib import Path

import cuda.core

from make_stubs.syntax import (
    NO_CONSTRUCTOR,
    check_known,
    is_public,
    member_name,
    mend_class,
    names_in,
    parse_members,
    paths_in,
    without_docstrings,
    write,
)

# Module -> what our code and its tests use of it, and what those classes name in public signatures.
KEPT = {
    "_context": ("Context",),
    "_device": ("DeviceProperties", "Device"),
    "_event": ("EventOptions", "Event"),
    "_launch_config": ("LaunchConfig",),
    "_launcher": ("launch",),
    "_memory/_buffer": ("Buffer", "MemoryResource"),
    "_memory/_device_memory_resource": ("DeviceMemoryResourceOptions", "DeviceMemoryResource"),
    "_memory/_legacy": ("LegacyPinnedMemoryResource",),
    "_memory/_memory_pool": ("_MemPoolAttributes", "_MemPool"),
    "_module": ("Kernel", "ObjectCode"),
    "_program": ("ProgramOptions", "Program"),
    "_stream": ("LEGACY_DEFAULT_STREAM", "PER_THREAD_DEFAULT_STREAM", "StreamOptions", "IsStreamType", "Stream"),
    "_utils/cuda_utils": ("CUDAError", "ComputeCapability"),
    "graph/_graph_builder": ("GraphDebugPrintOptions", "GraphCompleteOptions", "GraphBuilder", "Graph"),
    "typing": ("DevicePointerType",),
}
# Package -> modules whose public names it exports.
PACKAGES = {
    "": (
        "_context",
        "_device",
        "_event",
        "_launch_config",
        "_launcher",
        "_memory/_buffer",
        "_memory/_device_memory_resource",
        "_memory/_legacy",
        "_module",
        "_program",
        "_stream",
    ),
    "_memory": ("_memory/_buffer", "_memory/_device_memory_resource", "_memory/_legacy"),
    "graph": ("graph/_graph_builder",),
    "_utils": (),
}
STANDARD = {
    "dataclasses": ("dataclass",),
    "typing": ("Literal", "NamedTuple", "Protocol", "TypeAlias"),
    "typing_extensions": ("Never", "Self"),
    "cuda.bindings": ("driver",),
}
EQUALITY = "def __eq__(self, other: object, /) -> bool: ..."
# Types that the wheel's stubs leave open, from the docstrings there and docs of cuda.core 1.2.
MENDS = {
    **{f"{name}.__init__": NO_CONSTRUCTOR for name in ("Buffer", "Context", "DeviceProperties", "Event", "Stream")},
    **{f"{name}.__init__": NO_CONSTRUCTOR for name in ("Graph", "GraphBuilder", "_MemPoolAttributes")},
    **{f"{name}.__init__": NO_CONSTRUCTOR for name in ("Kernel", "ObjectCode")},
    **{f"LaunchConfig.{name}": f"{name}: tuple[int, ...]" for name in ("grid", "cluster", "block")},
    **{f"{name}.__eq__": EQUALITY for name in ("Buffer", "Context", "Event", "Stream")},
    **{f"{name}.__eq__": EQUALITY for name in ("Kernel", "LaunchConfig", "ObjectCode")},
    **{f"{name}.close": "def close(self) -> None: ..." for name in ("Context", "Event", "GraphBuilder", "Stream")},
    "Buffer.__enter__": "def __enter__(self) -> Self: ...",
    "Buffer.__exit__": "def __exit__(self, exc_type: object, exc_val: object, exc_tb: object) -> None: ...",
    "Buffer.copy_to": (
        "def copy_to(self, dst: Buffer | None = None, *, stream: Stream | GraphBuilder, options: None = None)"
        " -> Buffer: ..."
    ),
    "Buffer.copy_from": (
        "def copy_from(self, src: Buffer, *, stream: Stream | GraphBuilder, options: None = None) -> None: ..."
    ),
    "Buffer.fill": "def fill(self, value: int | bytes, *, stream: Stream | GraphBuilder) -> None: ...",
    "GraphBuilder.__dealloc__": "",
    "GraphBuilder.begin_building": (
        "def begin_building(self, mode: Literal['global', 'thread_local', 'relaxed'] | None = 'relaxed')"
        " -> GraphBuilder: ..."
    ),
    "GraphBuilder.embed": "def embed(self, child: GraphBuilder) -> None: ...",
    "Graph.update": "def update(self, source: GraphBuilder) -> None: ...",
    "Stream.from_handle": "@staticmethod\ndef from_handle(handle: int) -> Stream: ...",
    "StreamOptions.nonblocking": "nonblocking: bool = True",
    "Device.to_system_device": "",
    "Kernel.arguments_info": "",
    "Kernel.from_handle": "",
    **{f"ObjectCode.from_{kind}": "" for kind in ("cubin", "ptx", "ltoir", "fatbin", "object", "library")},
    "ObjectCode.__reduce__": "",
    "ObjectCode.get_module": "",
    "ObjectCode.code": "@property\ndef code(self) -> bytes: ...",
    "Program.__init__": (
        "def __init__(self, code: str, code_type: str, options: ProgramOptions | None = None) -> None: ..."
    ),
    "Program.__dealloc__": "",
    "Program.handle": "",
    "Program.compile": (
        "def compile(self, target_type: str, name_expressions: tuple[str, ...] | list[str] = (),"
        " logs: None = None, *, cache: None = None) -> ObjectCode: ..."
    ),
    # A whole number becomes a pointer; what the kernel takes in 32 bits says so by its own type.
    "launch": (
        "def launch(stream: Stream | GraphBuilder | IsStreamType, config: LaunchConfig, kernel: Kernel,"
        " *kernel_args: Buffer | int | float | bool | numpy.generic) -> None: ..."
    ),
}
# The handles of the driver's interface that signatures name; each is made from an address and is one by ``int``.
HANDLES = ("CUcontext", "CUdeviceptr", "CUevent", "CUgraphExec", "CUstream")


def generate(target: Path) -> None:
    """Write ``cuda/core`` and the handles of ``cuda/bindings/driver.pyi`` under ``target``."""
    version = importlib.metadata.version("cuda-core")
    wheel = Path(cuda.core.__path__[0])
    source = wheel if (wheel / "_device.pyi").exists() else wheel / "cu13"
    trees = {module: _parse(source, module) for module in KEPT}
    check_known(MENDS, set().union(*map(paths_in, trees.values())), "the stub of cuda.core")
    for module, tree in trees.items():
        check_known(KEPT[module], paths_in(tree), f"the stub of cuda.core.{module}")
        _module(module, tree, target / "cuda" / "core", version)
    for package, modules in PACKAGES.items():
        lines = [
            f"from cuda.core.{module.replace('/', '.')} import {name} as {name}"
            for module in modules
            for name in KEPT[module]
            if _exported(name)
        ]
        if package == "":
            lines.append("from cuda.core import graph as graph, typing as typing")
        head = [f"From the wheel cuda-core {version} (Apache-2.0, NVIDIA), by `make stubs`."]
        write(target / "cuda" / "core" / package / "__init__.pyi", head, ast.parse("\n".join(lines)))
    _handles(target / "cuda" / "bindings")


def _exported(name: str) -> bool:
    return is_public(name) and name not in ("DeviceProperties", "IsStreamType")


def _parse(source: Path, module: str) -> ast.Module:
    path = next(file for file in (source / f"{module}.pyi", source / f"{module}.py") if file.exists())
    return without_docstrings(ast.parse(path.read_text()))


def _module(module: str, tree: ast.Module, target: Path, version: str) -> None:
    keeps = KEPT[module]
    everything = {name for names in KEPT.values() for name in names}
    imports = [node for node in _unconditional(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    unknown = {node.name for node in tree.body if isinstance(node, ast.ClassDef)} - set(keeps)
    unknown |= {
        alias.asname or alias.name
        for node in imports
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cuda.core")
        for alias in node.names
        if alias.name not in everything | {"driver"}
    }
    body: list[ast.stmt] = []
    left_out: list[str] = []
    for node in tree.body:
        if member_name(node) not in keeps:
            continue
        if isinstance(node, ast.ClassDef):
            left_out += mend_class(node, MENDS, unknown)
        elif isinstance(node, ast.FunctionDef) and node.name in MENDS:
            body += parse_members(MENDS[node.name])
            continue
        elif isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation):
            node.annotation = ast.Name("TypeAlias")
        elif isinstance(node, ast.AnnAssign):
            node.value = None
        body.append(node)
    head = [f"From {module} of the wheel cuda-core {version} (Apache-2.0, NVIDIA), by `make stubs`."]
    if left_out:
        head.append("Left out, with types that are not here: " + ", ".join(dict.fromkeys(left_out)) + ".")
    write(target / f"{module}.pyi", head, ast.Module([*_imports(body, module), *body], []))


def _unconditional(tree: ast.Module) -> list[ast.stmt]:
    """The statements of a module, with those inside its ``if`` at the top."""
    return [inner for node in tree.body for inner in (node.body if isinstance(node, ast.If) else [node])]


def _imports(body: list[ast.stmt], module: str) -> list[ast.stmt]:
    """The imports that a module's kept definitions need."""
    used = set().union(*(names_in(node) for node in body))
    lines = [f"import {name}" for name in ("uuid", "numpy", "cuda.bindings.driver") if name.split(".")[0] in used]
    sources = {**STANDARD, **{f"cuda.core.{other.replace('/', '.')}": KEPT[other] for other in KEPT if other != module}}
    for source, names in sources.items():
        if found := [name for name in names if name in used]:
            lines.append(f"from {source} import {', '.join(found)}")
    return ast.parse("\n".join(lines)).body


def _handles(target: Path) -> None:
    version = importlib.metadata.version("cuda-bindings")
    lines = []
    for name in HANDLES:
        lines.append(f"class {name}:\n    def __int__(self) -> int: ...\n    def getPtr(self) -> int: ...")
        if name != "CUdeviceptr":  # whose constructor shows no arguments
            lines.append("    def __init__(self, init_value: int = ..., _ptr: int = ...) -> None: ...")
    head = [f"Handles of cuda-bindings {version} that signatures of cuda.core name, by `make stubs`."]
    write(target / "driver.pyi", head, ast.parse("\n".join(lines)))
    write(target / "__init__.pyi", head, ast.parse("from cuda.bindings import driver as driver"))
