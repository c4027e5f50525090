"""ONNX Runtime with CUDA: the tests of engines, the one stream, the fused rates. Needs the wheel of the engine."""

from __future__ import annotations

import sys

from call import Call

RATES = ("--only", "fused", "--minutes", "2", "--commit", "carried")

call = Call("engines")
call.pytest("engines", "tests/serving/engine/test_engine_on_gpu.py", limit_s=240)
call.pytest("one-stream", "tests/gpu/test_gpu_one_stream.py", "-k", "not dali and not cpu", limit_s=150)
call.run("rates", [sys.executable, "-m", "benchmarks.gpu", *RATES, "--out", str(call.out / "rates")], limit_s=170)
call.finish()
