"""What Triton gives its Python models, in a few lines, and modules that are imported anew to get it."""

from __future__ import annotations

import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from patience import PATIENCE_S

TRITON = "triton_python_backend_utils"
Array = npt.NDArray[Any]


class Tensor:
    """A name and values."""

    def __init__(self, name: str, values: Array) -> None:
        self.name, self.values = name, values

    @classmethod
    def from_dlpack(cls, name: str, given: Any) -> Tensor:
        return cls(name, given.numpy())

    def as_numpy(self) -> Array:
        return self.values


class TritonError(str):
    """Its text, with its code."""

    INVALID_ARG, INTERNAL, UNAVAILABLE = range(3)
    code: int

    def __new__(cls, text: str, code: int) -> TritonError:
        made = super().__new__(cls, text)
        made.code = code
        return made


class Response:
    """Values by their names, or an error."""

    def __init__(self, tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self.tensors, self.error = {one.name: one.values for one in tensors}, error


class Request:
    """What Triton hands over, with its only input as ``given``. It must be answered once.

    ``looks`` is how often Triton was asked whether it is cancelled.
    """

    traced = object()

    def __init__(
        self,
        name: str = "",
        *,
        given: Array | None = None,
        parameters: str = "",
        timeout_us: int = 0,
        is_cancelled: bool = False,
    ) -> None:
        self.name, self.given, self.looks = name, given, 0
        self._answers: list[Any] = []
        self._answered = threading.Event()
        self._parameters, self._timeout_us, self._is_cancelled = parameters, timeout_us, is_cancelled

    def request_id(self) -> str:
        return self.name

    def parameters(self) -> str:
        return self._parameters

    def timeout(self) -> int:
        return self._timeout_us

    def trace(self) -> object:
        return self.traced

    def is_cancelled(self) -> bool:
        self.looks += 1
        return self._is_cancelled

    def get_response_sender(self) -> Request:
        return self

    def send(self, response: Any, flags: int) -> None:
        assert flags == 1, "it is the only and last response"
        self._answers.append(response)
        self._answered.set()

    def answer(self) -> Any:
        """The response, as soon as it is there."""
        assert self._answered.wait(PATIENCE_S)
        (answer,) = self._answers
        return answer


def triton(network: Callable[[Array], Array] | None = None) -> Any:
    """A module to stand in ``sys.modules[TRITON]``.

    ``said`` has what models logged, ``counted`` what they counted, by a metric's name and its label. Pixels that a
    model hands on go through ``network``, to *person*.
    """
    module: Any = types.ModuleType(TRITON)
    module.said, module.counted = [], Counter()
    module.Logger = types.SimpleNamespace(**dict.fromkeys(("log_info", "log_warn", "log_error"), module.said.append))

    class MetricFamily:
        COUNTER = GAUGE = 0

        def __init__(self, *, name: str, **_: Any) -> None:
            self._name = name

        def Metric(self, *, labels: dict[str, str]) -> Any:  # noqa: N802 (Triton's name)
            key = self._name, labels.get("label", "")
            return types.SimpleNamespace(
                increment=lambda more: module.counted.update({key: more}), set=lambda _value: None
            )

    class InferenceRequest:
        def __init__(self, *, inputs: list[Tensor], **_options: Any) -> None:
            self._pixels = inputs[0].values

        def exec(self) -> Any:
            # A network on a GPU would read it there, and give back memory of its own.
            person = Tensor("person", np.array(network(self._pixels.copy()), np.float32))
            return types.SimpleNamespace(has_error=lambda: False, outputs=[person])

    module.MetricFamily, module.InferenceRequest = MetricFamily, InferenceRequest
    module.Tensor, module.InferenceResponse, module.TritonError = Tensor, Response, TritonError
    module.PreferredMemory = lambda _kind: None
    module.TRITONSERVER_MEMORY_CPU, module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 0, 1
    module.get_input_tensor_by_name = lambda request, name: Tensor(name, request.given)
    module.get_output_tensor_by_name = lambda response, name: next(one for one in response.outputs if one.name == name)
    return module


@contextmanager
def imported_anew(*names: str, **stand_ins: Any) -> Iterator[None]:
    """Modules of these names, and those in them, are imported anew inside, where others have ``stand_ins``."""

    def known() -> list[str]:
        return [
            name
            for name in sys.modules
            if any(name == one or name.startswith(f"{one}.") for one in (*names, *stand_ins))
        ]

    before = {name: sys.modules.pop(name) for name in known()}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name in known():
            del sys.modules[name]
        sys.modules.update(before)
