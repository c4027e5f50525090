"""Lets workers of Ray say how many threads their network has."""

from __future__ import annotations

from typing import Any

from ray_hooks import arrive


def install() -> None:
    """Let ONNX Runtime open a network when all workers are there."""
    import onnxruntime

    open_session = onnxruntime.InferenceSession

    def open_together(source: Any, options: Any, **others: Any) -> Any:
        arrive(str(options.intra_op_num_threads))
        return open_session(source, options, **others)

    onnxruntime.InferenceSession = open_together
