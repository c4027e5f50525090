"""DALI Proxy: an existing dataset and its multi-process ``DataLoader`` keep their code, and only preprocessing moves.

The transform runs in the loader's workers and sends encoded bytes; DALI runs in the main process, for whole batches.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onestream.preprocess.backends.base import Device, refuse_for_graph, refuse_reduced, refuse_regions
from onestream.preprocess.backends.batches import for_library
from onestream.preprocess.backends.dali_graph import (
    build_graph,
    external_inputs,
    graph_inputs,
    graph_values,
    new_pipeline,
)
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotCompile
from onestream.preprocess.headers.reader import Encoded, for_decoders
from onestream.preprocess.limits import Limits, admit
from onestream.preprocess.plan import Planner
from onestream.preprocess.variation import canvas_of


class DaliProxy:
    """Serves a definition to the workers of a ``DataLoader``.

    >>> with DaliProxy(definition, batch_size=64, device="gpu") as proxy:                # doctest: +SKIP
    ...     data = torchvision.datasets.ImageFolder("photos", transform=proxy.transform, loader=proxy.read)
    ...     for images, labels in proxy.loader(data, num_workers=4): ...

    ``transform`` takes a path or encoded bytes. Everything runs as one DALI graph, on the *cpu* within a level of the
    reference (``tolerances.py``), except in the outermost pixels of an image that is not cropped. A file that is
    refused raises ``BadImage`` in its worker, before it is sent.
    """

    def __init__(
        self,
        definition: Definition,
        *,
        batch_size: int,
        device: Device = "cpu",
        threads: int = 1,
        limits: Limits | None = None,
    ) -> None:
        from nvidia.dali.plugin.pytorch.experimental import proxy

        refuse_regions(definition, what="the DALI proxy")
        refuse_reduced(definition, what="the DALI proxy")
        try:
            canvas_of(definition)
        except ValueError as error:
            raise CannotCompile(f"images of a batch must have one size: {error}") from None
        # On a CPU the graph is asked to do what it does on a GPU, so the same is refused.
        refuse_for_graph(definition)
        self._module, self._batch_size = proxy, batch_size
        _work_without_cuda(proxy)
        names = graph_inputs(definition)
        pipeline = new_pipeline(device=device, max_batch_size=batch_size, threads=threads)
        with pipeline:
            pipeline.set_outputs(build_graph(external_inputs(names), definition, device=device))
        self._server = proxy.DALIServer(pipeline)
        self.transform: Callable[[Encoded | str | PathLike[str]], Any] = _Transform(
            definition, tuple(names), limits or Limits(), self._server.proxy
        )

    @staticmethod
    def read(path: str | PathLike[str]) -> bytes:
        """Read a file: what a dataset's ``loader`` argument takes, so that it does not decode by itself."""
        return Path(path).read_bytes()

    def loader(self, dataset: torch.utils.data.Dataset[Any], **options: Any) -> Any:
        """A ``torch.utils.data.DataLoader`` of the dataset; ``num_workers`` must be at least 1 and is 1 by default."""
        options = {"num_workers": 1, "batch_size": self._batch_size, **options}
        if options["num_workers"] < 1:
            raise ValueError("DALI Proxy needs num_workers of at least 1")
        if options["batch_size"] > self._batch_size:
            raise ValueError(f"batch_size must be at most the proxy's {self._batch_size}, got {options['batch_size']}")
        return self._module.DataLoader(self._server, dataset, **options)

    def __enter__(self) -> DaliProxy:
        """Start DALI's thread."""
        self._server.start_thread()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self._server.stop_thread()


class _Transform:
    """Runs in the workers: header, geometry and bytes go to DALI, pixels come later."""

    def __init__(
        self, definition: Definition, names: tuple[str, ...], limits: Limits, send: Callable[..., Any]
    ) -> None:
        self._names, self._limits, self._send = names, limits, send
        self._planner = Planner(definition, limits)

    def __call__(self, image: Encoded | str | PathLike[str]) -> Any:
        data = Path(image).read_bytes() if isinstance(image, str | PathLike) else image
        definition = self._planner.definition
        data, header = for_library(data, admit(data, definition, self._limits), definition)
        values = graph_values(self._planner(header.oriented_hw))
        values["encoded"] = np.frombuffer(for_decoders(data, header), np.uint8)
        return self._send(**{name: values[name] for name in self._names})


def _work_without_cuda(proxy: Any) -> None:
    """Let DALI's module mark its ranges only where PyTorch has CUDA: a CPU build raises on every mark."""
    if not torch.cuda.is_available():
        proxy._nvtx = _NoMarks


class _NoMarks:
    @staticmethod
    def range_push(name: str) -> None: ...

    @staticmethod
    def range_pop() -> None: ...
