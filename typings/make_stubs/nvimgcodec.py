"""Stubs of ``nvidia.nvimgcodec``: what its signatures leave open is said in the docstrings of the wheel."""

from __future__ import annotations

import ast
import importlib.metadata
from pathlib import Path

from make_stubs.pybind import Source, read
from make_stubs.syntax import write

_DECODE = """
@overload
def {name}(
    self,
    {one}: CodeStream | bytes | str,
    *,
    image: Image | None = None,
    params: DecodeParams | None = None,
    cuda_stream: int = 0,
) -> Image | None: ...
@overload
def {name}(
    self,
    {many}: Sequence[CodeStream] | Sequence[bytes],
    *,
    images: Sequence[Image] | None = None,
    params: DecodeParams | None = None,
    cuda_stream: int = 0,
) -> list[Image | None]: ...
"""
_ENTER = "def __enter__(self) -> Self: ..."
_EXIT = (
    "def __exit__(self, exc_type: type | None = None, exc_value: object | None = None, traceback: object | None = None)"
    " -> None: ..."
)
_AS_IMAGE = """
def {name}(
    {argument},
    cuda_stream: int = 0,
    *,
    sample_format: SampleFormat | None = None,
    color_spec: ColorSpec | None = None,
    precision: int | None = None,
) -> {result}: ...
"""
_SHAPE = "@property\ndef {}(self) -> tuple[int, ...]: ..."
_INTERFACE = "@property\ndef {}(self) -> dict[str, object]: ..."
_DTYPE = "@property\ndef dtype(self) -> np.dtype[np.generic]: ..."

SOURCE = Source(
    module="nvidia.nvimgcodec.nvimgcodec_impl",
    constants=("NVIMGCODEC_DEVICE_CPU_ONLY", "NVIMGCODEC_DEVICE_CURRENT", "__version__", "__cuda_version__"),
    imports=("import numpy as np", "import numpy.typing as npt", "import os"),
    mends={
        "CodeStream.__init__": (
            "@overload\ndef __init__(self, bytes: bytes, bitstream_offset: int | None = None) -> None: ...\n"
            "@overload\ndef __init__(self, array: npt.NDArray[np.uint8], bitstream_offset: int | None = None)"
            " -> None: ...\n"
            "@overload\ndef __init__(self, filename: str | os.PathLike[str], bitstream_offset: int | None = None)"
            " -> None: ...\n"
            "@overload\ndef __init__(self, pre_allocated_size: int = 0, pin_memory: bool = True) -> None: ..."
        ),
        "CodeStream.dtype": _DTYPE,
        "Decoder.__enter__": _ENTER,
        "Decoder.__exit__": _EXIT,
        "Decoder.decode": _DECODE.format(name="decode", one="src", many="srcs"),
        "Decoder.read": _DECODE.format(name="read", one="path", many="paths"),
        "Decoder.get_metadata": (
            "@overload\ndef get_metadata(self, code_stream: CodeStream, *, kind: MetadataKind | None = None)"
            " -> list[Metadata]: ...\n"
            "@overload\ndef get_metadata(self, code_stream: CodeStream, *, id: int, kind: MetadataKind = ...)"
            " -> Metadata | None: ..."
        ),
        "Encoder.__enter__": _ENTER,
        "Encoder.__exit__": _EXIT,
        "Image.__array__": (
            "def __array__(self, dtype: npt.DTypeLike = None, copy: bool | None = None) -> npt.NDArray[np.generic]: ..."
        ),
        "Image.__array_interface__": _INTERFACE.format("__array_interface__"),
        "Image.__cuda_array_interface__": _INTERFACE.format("__cuda_array_interface__"),
        "Image.__dlpack__": "def __dlpack__(self, stream: int | None = None) -> object: ...",
        "Image.__dlpack_device__": "def __dlpack_device__(self) -> tuple[int, int]: ...",
        "Image.cpu": "def cpu(self) -> Image | None: ...",
        "Image.cuda": (
            "def cuda(self, synchronize: bool = True, device_id: int = -1, cuda_stream: int = 0) -> Image | None: ..."
        ),
        "Image.dtype": _DTYPE,
        "Image.shape": _SHAPE.format("shape"),
        "Image.strides": _SHAPE.format("strides"),
        "Image.to_dlpack": "def to_dlpack(self, cuda_stream: int | None = None) -> object: ...",
        "Region.end": _SHAPE.format("end"),
        "Region.start": _SHAPE.format("start"),
        "Region.__init__": (
            "@overload\ndef __init__(self) -> None: ...\n"
            "@overload\ndef __init__(self, start_y: int, start_x: int, end_y: int, end_x: int,"
            " out_of_bounds_sample: float = 0) -> None: ...\n"
            "@overload\ndef __init__(self, start: Sequence[int], end: Sequence[int],"
            " out_of_bounds_sample: float = 0) -> None: ..."
        ),
        "as_image": _AS_IMAGE.format(name="as_image", argument="source: object", result="Image"),
        "as_images": _AS_IMAGE.format(name="as_images", argument="sources: Sequence[object]", result="list[Image]"),
        "from_dlpack": _AS_IMAGE.format(name="from_dlpack", argument="source: object", result="Image"),
    },
)


def generate(target: Path) -> None:
    """Write ``nvidia/nvimgcodec/__init__.pyi`` under ``target``."""
    tree, left_out = read(SOURCE)
    version = importlib.metadata.version("nvidia-nvimgcodec-cu12")
    head = [f"From the wheel nvidia-nvimgcodec-cu12 {version} (Apache-2.0, NVIDIA), by `make stubs`."]
    if left_out:
        head.append("Left out, for want of a precise type: " + ", ".join(dict.fromkeys(left_out)) + ".")
    write(target / "nvidia" / "nvimgcodec" / "__init__.pyi", head, tree)
    # A package that mypy finds whole: other wheels put an untyped one into site-packages.
    write(
        target / "nvidia" / "__init__.pyi", ["The namespace of NVIDIA's wheels, by `make stubs`."], ast.Module([], [])
    )
