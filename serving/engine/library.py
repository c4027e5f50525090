"""TensorRT, or where it is missing TensorRT for RTX, whose API is nearly the same; imported only by what needs it.

Importing this raises ``BackendMissing`` where neither is installed.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections import deque
from typing import TYPE_CHECKING, Literal

from onestream.preprocess.errors import BackendMissing

INSTALL_TENSORRT = (
    "run in Triton's container, which has it, install NVIDIA's `tensorrt` in the version of the server's TensorRT, or "
    "choose serving.gpu.engine: onnxruntime"
)

__all__ = ["INSTALL_TENSORRT", "IS_RTX", "LOG", "NAME", "TITLE", "VERSION", "Log", "capability_name", "plain", "trt"]

if TYPE_CHECKING:
    # One set of stubs types both: what only one of them has is asked for by ``IS_RTX``.
    import tensorrt_rtx as trt
else:
    _broken = []
    for _name in ("tensorrt", "tensorrt_rtx"):
        try:
            trt = importlib.import_module(_name)
            # A placeholder imports and holds nothing.
            trt.Builder  # noqa: B018
            break
        except ModuleNotFoundError:
            continue
        except (ImportError, OSError, AttributeError) as _error:
            _broken.append(f"{_name} does not load: {(str(_error).splitlines() or [''])[0]}; ")
    else:
        raise BackendMissing(f"there is no TensorRT here: {''.join(_broken)}{INSTALL_TENSORRT}")

NAME: Literal["tensorrt", "tensorrt_rtx"] = "tensorrt_rtx" if trt.__name__ == "tensorrt_rtx" else "tensorrt"
VERSION: str = trt.__version__
IS_RTX = NAME == "tensorrt_rtx"
TITLE = f"{'TensorRT for RTX' if IS_RTX else 'TensorRT'} {VERSION}"

_SOURCE = re.compile(r"\s*\bIn \S+ at /[^\s)]+")
_KEPT_LINES = 50


class Log(trt.ILogger):
    """Keeps the last errors that TensorRT logs, which are the reasons for what it returns as None."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self._lock = threading.Lock()
        self._errors: deque[str] = deque(maxlen=_KEPT_LINES)

    def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
        """Called by TensorRT, from any thread."""
        if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
            with self._lock:
                self._errors.append(msg)

    def take(self) -> str:
        """The first reason since the last call, on one line, or *no reason given*; forgets all of them."""
        with self._lock:
            reasons = [plain(line) for line in self._errors]
            self._errors.clear()
        return next((reason for reason in reasons if reason), "no reason given")


LOG = Log()
"""TensorRT has one logger for a whole process: the first that it is given."""


def plain(message: str) -> str:
    """One line of what TensorRT says, without the places in its sources."""
    line = next((line for line in message.splitlines() if line.strip()), "")
    line = _SOURCE.sub("", line).strip()
    return line if len(line) <= 300 else line[:297] + "..."


def capability_name(capability: tuple[int, int]) -> str:
    """Such as *8.9* for (8, 9)."""
    return f"{capability[0]}.{capability[1]}"
