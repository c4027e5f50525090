"""The CV-CUDA backend on a GPU of host memory, compiled anew with what stands in for the libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from host_gpu import HostDevice, HostNvimgcodec, fake_cvcuda

from onestream.preprocess import Definition, Limits
from onestream.preprocess.backends.base import DecodeOptions

Compile = Callable[..., Any]
MODULES = ("onestream.preprocess.backends.cvcuda", "onestream.preprocess.backends.hq_resize")


@contextmanager
def cvcuda_on_host(codec: HostNvimgcodec | None = None) -> Iterator[Compile]:
    """Compiles a definition for CV-CUDA, on a stream of its own where none is given."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cvcuda", fake_cvcuda())
        for module in MODULES:
            patch.delitem(sys.modules, module, raising=False)
        from onestream.preprocess.backends import cvcuda, nvimgcodec

        patch.setattr(nvimgcodec, "nvimgcodec", codec or HostNvimgcodec())

        def compile_on_host(definition: Definition, *, max_batch_size: int = 8, **options: Any) -> Any:
            stream = options.pop("stream", None) or HostDevice().stream()
            limits = options.pop("limits", None) or Limits()
            given = {"decode": DecodeOptions(), "max_batch_size": max_batch_size, "threads": 1, **options}
            return cvcuda.CvCuda(definition, limits, stream=stream, **given)

        yield compile_on_host
        for module in MODULES:
            sys.modules.pop(module, None)
