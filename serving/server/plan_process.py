"""Builds missing TensorRT plans: ``python -m onestream.serving.server.plan_process REQUEST...``.

What a builder holds of the GPU is gone with this process, and what can crash it crashes nothing else. A request is the
JSON of a ``onestream.serving.server.tensorrt_prebuild.PlanRequest``; the answers are lines of JSON: ``{"progress": …}``
any number of times, and ``{"plans": {CAPABILITY: PATH}}`` for each request in order, or ``{"error": REASON}`` and exit
code 1 at the first that fails.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from onestream.preprocess.cuda.device import GpuKind, gpu_count, open_device
from onestream.preprocess.errors import PreprocessError
from onestream.serving.errors import ServingError
from onestream.serving.server.tensorrt_prebuild import PlanRequest


def main(requests: list[str]) -> int:
    """Answer the requests on stdout; returns the exit code."""
    try:
        for request in requests:
            _answer("plans", _ensure(PlanRequest.model_validate_json(request)))
    except (PreprocessError, ServingError) as error:
        _answer("error", str(error))
        return 1
    return 0


def _ensure(request: PlanRequest) -> dict[str, str]:
    """The plans of a request by compute capability, one for each kind of its GPUs.

    Where GPUs of two kinds have one capability, the plan of the first is named: Triton chooses by capability alone.
    """
    # Whatever is missing for these is an answer too.
    from onestream.serving.engine import library
    from onestream.serving.engine.cache import ensure_plan
    from onestream.serving.engine.plan import PlanOptions
    from onestream.serving.engine.table import check_stamp
    from onestream.serving.errors import BadPlan
    from onestream.serving.graph.onnx_postprocess import fused_network

    if request.postprocess is not None:
        content = fused_network(request.network, request.postprocess)
    else:
        content = request.network.read_bytes()
        if library.IS_RTX and request.compute_capability is None:
            raise BadPlan(f"Triton's TensorRT backend loads plans of TensorRT; here is {library.TITLE}")
    check_stamp(content, None)
    plans: dict[str, str] = {}
    for kind in _enter_each_kind(request):
        plan = ensure_plan(
            content,
            PlanOptions(max_batch_size=request.max_batch_size, precision=request.precision),
            gpu=kind,
            progress=lambda line: _answer("progress", line),
        )
        plans.setdefault(library.capability_name(kind.compute_capability), str(plan))
    return plans


def _enter_each_kind(request: PlanRequest) -> Iterator[GpuKind]:
    """Each kind of GPU that a request is for, while a GPU of it is the current one."""
    if request.compute_capability is not None:
        yield GpuKind(request.compute_capability, "")
        return
    seen = set()
    for index in request.gpus or range(gpu_count()):
        kind = open_device(index).kind
        if kind not in seen:
            seen.add(kind)
            yield kind


def _answer(kind: str, content: str | dict[str, str]) -> None:
    print(json.dumps({kind: content}), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
