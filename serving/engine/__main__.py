"""Builds missing TensorRT plans, in a process of its own: ``python -m onestream.serving.engine REQUEST...``.

What a builder holds of the GPU is gone with this process, and what can crash it crashes nothing else. A request is the
JSON of a ``onestream.serving.server.tensorrt_prebuild.PlanRequest``; the answers are lines of JSON: ``{"progress": …}``
any number of times, and ``{"plan": PATH}`` for each request in order, or ``{"error": REASON}`` and exit code 1 at the
first that fails.
"""

from __future__ import annotations

import json
import sys

from onestream.preprocess.errors import PreprocessError
from onestream.serving.errors import ServingError
from onestream.serving.server.tensorrt_prebuild import PlanRequest


def main(requests: list[str]) -> int:
    """Answer the requests on stdout; returns the exit code."""
    try:
        for request in requests:
            _answer("plan", _ensure(PlanRequest.from_json(request)))
    except (PreprocessError, ServingError) as error:
        _answer("error", str(error))
        return 1
    return 0


def _ensure(request: PlanRequest) -> str:
    # Whatever is missing for these is an answer too.
    from onestream.serving.engine import library
    from onestream.serving.engine.cache import ensure_plan
    from onestream.serving.engine.fused import fused_network
    from onestream.serving.engine.load import check_stamp
    from onestream.serving.engine.plan import PlanOptions
    from onestream.serving.errors import BadPlan

    if request.postprocess is not None:
        content = fused_network(request.network, request.postprocess)
    else:
        content = request.network.read_bytes()
        if library.IS_RTX and request.compute_capability is None:
            raise BadPlan(f"Triton's TensorRT backend loads plans of TensorRT; here is {library.TITLE}")
    check_stamp(content, None)
    return str(
        ensure_plan(
            content,
            PlanOptions(max_batch_size=request.max_batch_size, precision=request.precision),
            compute_capability=request.compute_capability or _capability_here(),
            progress=lambda line: _answer("progress", line),
        )
    )


def _capability_here() -> tuple[int, int]:
    from onestream.preprocess.cuda.device import open_device

    return open_device().compute_capability


def _answer(kind: str, text: str) -> None:
    print(json.dumps({kind: text}), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
