"""What an int8 network costs and gains, as its certificate states it. Imports nothing that only a build has."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from onestream.postprocess.agreement import Agreement

_CPUINFO = Path("/proc/cpuinfo")
_INT8 = ("avx2", "avx512bw", "avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm", "sve")
"""Instruction sets by Linux's names that ONNX Runtime's integer kernels use, on x86-64 and ARM."""


class Processor(BaseModel):
    """Its name, and those of its instruction sets that matter to integer arithmetic."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    instruction_sets: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.instruction_sets) or 'no integer instructions'})"


@cache
def this_processor() -> Processor:
    """The one that runs this process."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    known = set(flags[1].split()) if flags else set()
    return Processor(
        name=name[1].strip() if name else platform.machine(),
        instruction_sets=tuple(one for one in _INT8 if one in known),
    )


_KEY = "onestream.quantization"
_Frozen = ConfigDict(frozen=True, extra="forbid")

Weights = Literal["per_channel", "per_tensor"]
Ranges = Literal["minmax", "entropy", "percentile"]
Door = Literal["pixels", "folded", "float32"]


class Settings(BaseModel):
    """One way to quantize a network.

    Attributes:
        weights: one scale for each output channel of a layer, or one for the whole layer.
        ranges: how the range of an activation follows from its values: all of them, or without rare large ones.
        kept: which layers stay in float32, in words; empty where none does.
        kept_layers: names of these layers' nodes.
    """

    model_config = _Frozen

    weights: Weights = "per_channel"
    ranges: Ranges = "minmax"
    kept: str = ""
    kept_layers: tuple[str, ...] = ()

    def __str__(self) -> str:
        kept = f", {self.kept} in float32" if self.kept else ""
        return f"weights {self.weights.replace('_', ' ')}, ranges by {self.ranges}{kept}"


class Pictures(BaseModel):
    """The pictures of a build, without those that appeared twice or that the definition refuses.

    ``calibrated_sha256`` is of the sorted SHA-256 digests of the files that ranges were taken from, ``held_out_sha256``
    of those that agreement was measured with; no file is in both.
    """

    model_config = _Frozen

    calibrated: int
    calibrated_sha256: str
    held_out: int
    held_out_sha256: str
    refused: int = 0


class Speed(BaseModel):
    """Milliseconds of one run with one picture, medians of interleaved runs in one process.

    ``pixels`` is its shape at the network's door.
    """

    model_config = _Frozen

    float32_ms: float
    int8_ms: float
    threads: int
    pixels: tuple[int, int, int]
    processor: Processor


class Tried(BaseModel):
    """A setting that the build measured."""

    model_config = _Frozen

    settings: Settings
    agreement: Agreement
    ms: float


class ForTensorRt(BaseModel):
    """The network in int8 for TensorRT, from the same calibration: how it answers when ONNX Runtime computes it.

    Attributes:
        settings: those that agree best; their time is that of a GPU, which is not measured.
        agreement: on the same pictures as of the network for a CPU.
    """

    model_config = _Frozen

    settings: Settings
    agreement: Agreement


class Quantization(BaseModel):
    """What a build measured of an int8 network beside float32.

    Attributes:
        settings: those that were chosen.
        door: *pixels*: the uint8 pixels are the first quantized tensor; *folded*: they are, and a part of the
            normalization is in the weights of the first convolution; *float32*: the definition's arithmetic.
        onnxruntime: the version that quantized it.
        min_agreement: below which it would have been refused.
        tensorrt: the network for TensorRT, which below ``min_agreement`` is not kept; None where there is none.
        why_no_tensorrt: what ONNX Runtime's tools said where it was asked for and could not be made.
        tried: every setting that was measured.
    """

    model_config = _Frozen

    precision: Literal["int8"] = "int8"
    settings: Settings
    door: Door
    onnxruntime: str
    pictures: Pictures
    labels_sha256: str | None = None
    min_agreement: float
    agreement: Agreement
    speed: Speed
    tried: tuple[Tried, ...]
    tensorrt: ForTensorRt | None = None
    why_no_tensorrt: str = ""

    def summary(self) -> str:
        """What it costs and gains, and how much the pictures prove, in one line."""
        speed = self.speed
        slower = ", so float32 is better here" if speed.int8_ms >= speed.float32_ms else ""
        least = self.agreement.at_least
        proof = "" if least is None else f", 95 % sure to be {least:.2f} or more"
        return (
            f"int8: {self.agreement}, on {self.pictures.held_out} held-out pictures{proof}; {speed.int8_ms:.2f} ms an "
            f"image, float32 {speed.float32_ms:.2f} ms{slower} ({self.settings})"
        )

    def entry(self) -> dict[str, str]:
        """The metadata entry of an ONNX file that carries it."""
        return {_KEY: self.model_dump_json()}


def read_quantization(metadata: Mapping[str, str]) -> Quantization | None:
    """What an ONNX file's metadata say; None for a network in float32, or an entry that cannot be read."""
    try:
        return Quantization.model_validate_json(metadata[_KEY]) if _KEY in metadata else None
    except ValidationError:
        return None
