"""A gRPC server that says what a test wants said, so that the page meets what a real Triton does rarely."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceServicer, add_GRPCInferenceServiceServicer_to_server
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

Outputs = Mapping[str, npt.NDArray[Any]]

WIDTH, HEIGHT = 96, 64
"""Of the picture that the page is given before this server."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model's configuration, as far as the page reads it, and what it answers to whatever it is asked."""

    answer: Callable[[], Outputs]
    inputs: Sequence[str]
    outputs: Sequence[str]
    parameters: Mapping[str, str] = field(default_factory=dict)


class FakeTriton(GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Serves ``models``. ``failing``: the status and the words in which a method or a model refuses.

    ``asked`` are the models that were asked for an answer, which waits for ``go_on``; ``configs`` counts
    configurations that were read.
    """

    def __init__(self, models: Mapping[str, Model]) -> None:
        self.models = dict(models)
        self.failing: dict[str, tuple[grpc.StatusCode, str]] = {}
        self.asked: list[str] = []
        self.configs = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self._counted = 0

    def ServerMetadata(self, _request: Any, _context: Any) -> Any:  # noqa: N802 - gRPC's name
        return messages.ServerMetadataResponse(name="fake", version="1")

    def ModelStatistics(self, request: Any, _context: Any) -> Any:  # noqa: N802
        self._counted += 1
        phase = messages.StatisticDuration(count=self._counted, ns=self._counted)
        stats = messages.InferStatistics(success=phase, queue=phase, compute_infer=phase)
        names = [request.name] if request.name else list(self.models)
        return messages.ModelStatisticsResponse(
            model_stats=[messages.ModelStatistics(name=name, version="1", inference_stats=stats) for name in names]
        )

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._refuse("ModelConfig", context)
        self.configs += 1
        model = self.models[request.name]
        found = messages.ModelConfigResponse()
        found.config.name = request.name
        for name in model.inputs:
            found.config.input.add().name = name
        for name in model.outputs:
            found.config.output.add().name = name
        for key, value in model.parameters.items():
            found.config.parameters[key].string_value = value
        return found

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked.append(request.model_name)
        self._refuse(request.model_name, context)
        assert self.go_on.wait(20)
        found = messages.ModelInferResponse(model_name=request.model_name, model_version="1")
        for name, value in self.models[request.model_name].answer().items():
            found.outputs.add(name=name, datatype=np_to_triton_dtype(value.dtype), shape=value.shape)
            if value.dtype == np.object_:
                found.raw_output_contents.append(serialize_byte_tensor(value).item() if value.size else b"")
            else:
                found.raw_output_contents.append(value.tobytes())
        return found

    def _refuse(self, what: str, context: Any) -> None:
        if what in self.failing:
            context.abort(*self.failing[what])


@contextmanager
def serving(models: Mapping[str, Model], *, port: int = 0) -> Iterator[tuple[str, FakeTriton]]:
    """A server of these models, and its address."""
    servicer = FakeTriton(models)
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield f"127.0.0.1:{port}", servicer
    finally:
        servicer.go_on.set()
        server.stop(None).wait()
