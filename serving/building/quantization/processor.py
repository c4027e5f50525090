"""This machine's processor, as far as the speed of a network depends on it."""

from __future__ import annotations

import platform
import re
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

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
