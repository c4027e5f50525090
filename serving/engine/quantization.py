"""What a network in int8 or bfloat16 costs and gains, as certificates say. Imports nothing that only a build has."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from onestream.postprocess.agreement import Agreement

_CPUINFO = Path("/proc/cpuinfo")
_KNOWN = (
    "avx2",
    "avx512bw",
    "avx_vnni",
    "avx512_vnni",
    "amx_int8",
    "avx512_bf16",
    "amx_bf16",
    "asimddp",
    "i8mm",
    "sve",
)
"""Instruction sets by Linux's names for sums of int8 and of bfloat16, on x86-64 and ARM."""


class Processor(BaseModel):
    """Its name, and those of its instruction sets that matter to int8 and bfloat16."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    instruction_sets: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.instruction_sets) or 'none for int8 or bfloat16'})"


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
        instruction_sets=tuple(one for one in _KNOWN if one in known),
    )


_KEY = "onestream.quantization"
COMPUTED_IN = "onestream.precision"
"""The metadata entry of a network in float32 that an engine computes in another precision."""
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
    """Milliseconds of one run with one picture, in less precision and in float32: medians of interleaved runs.

    ``pixels`` is its shape at the network's door.
    """

    model_config = _Frozen

    float32_ms: float
    ms: float = Field(validation_alias=AliasChoices("ms", "int8_ms"))
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
    """The network in int8 for TensorRT, from the same calibration: how it answers when the CPU's engine computes it.

    Attributes:
        settings: those that agree best; their time is that of a GPU, which is not measured.
        agreement: on the same pictures as of the network for a CPU.
    """

    model_config = _Frozen

    settings: Settings
    agreement: Agreement


class Price(BaseModel):
    """What a build measured of a network in less precision beside float32.

    Attributes:
        engine: what ran both, a name of ``engine.table.CPU_ENGINES``.
        pictures: those of the build.
        labels_sha256: of the file of labels, where there is one.
        min_agreement: below which it would have been refused.
    """

    model_config = _Frozen

    precision: Literal["int8", "bf16"]
    engine: str = "onnxruntime"
    pictures: Pictures
    labels_sha256: str | None = None
    min_agreement: float
    agreement: Agreement
    speed: Speed

    def summary(self) -> str:
        """What it costs and gains, and how much the pictures prove, in one line."""
        speed = self.speed
        slower = ", so float32 is better here" if speed.ms >= speed.float32_ms else ""
        least = self.agreement.at_least
        proof = "" if least is None else f", 95 % sure to be {least:.2f} or more"
        return (
            f"{self.precision}: {self.agreement}, on {self.pictures.held_out} held-out pictures{proof}; "
            f"{speed.ms:.2f} ms an image, float32 {speed.float32_ms:.2f} ms{slower} ({self.how})"
        )

    @property
    def how(self) -> str:
        """What computes it, in words."""
        return self.engine

    def entry(self) -> dict[str, str]:
        """The metadata entry of an ONNX file that carries it."""
        return {_KEY: self.model_dump_json()}


class Rounding(Price):
    """The price of bfloat16: float32's weights, which the ``engine`` rounds when it loads them."""

    precision: Literal["bf16"] = "bf16"


class Quantization(Price):
    """The price of int8.

    Attributes:
        settings: those that were chosen.
        door: *pixels*: the uint8 pixels are the first quantized tensor; *folded*: they are, and a part of the
            normalization is in the weights of the first convolution; *float32*: the definition's arithmetic.
        onnxruntime: the version that quantized it.
        tensorrt: the network for TensorRT, which below ``min_agreement`` is not kept; None where there is none.
        why_no_tensorrt: what ONNX Runtime's tools said where it was asked for and could not be made.
        tried: every setting that was measured.
    """

    precision: Literal["int8"] = "int8"
    settings: Settings
    door: Door
    onnxruntime: str
    tried: tuple[Tried, ...]
    tensorrt: ForTensorRt | None = None
    why_no_tensorrt: str = ""

    @property
    def how(self) -> str:
        """See ``Price.how``."""
        return str(self.settings)


AnyPrice = Annotated[Quantization | Rounding, Field(discriminator="precision")]
_PRICES: TypeAdapter[Quantization | Rounding] = TypeAdapter(AnyPrice)


def read_price(metadata: Mapping[str, str]) -> Quantization | Rounding | None:
    """What an ONNX file's metadata say; None for a network in float32, or an entry that cannot be read."""
    try:
        return _PRICES.validate_json(metadata[_KEY]) if _KEY in metadata else None
    except ValidationError:
        return None
