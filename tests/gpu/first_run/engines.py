"""ONNX Runtime with CUDA: tests of engines, a cascade, the one stream, the fused rates. Needs the engine's wheel."""

from __future__ import annotations

import sys

from call import Call

RATES = ("--only", "fused", "--minutes", "2", "--commit", "carried")

call = Call("engines")
call.pytest("engines", "tests/serving/engine/test_engine_on_gpu.py", limit_s=200)
call.pytest("cascade", "tests/gpu/test_gpu_cascade.py", limit_s=90)
call.pytest("one-stream", "tests/gpu/test_gpu_one_stream.py", "-k", "not dali and not cpu", limit_s=110)
call.run("rates", [sys.executable, "-m", "benchmarks.gpu", *RATES, "--out", str(call.out / "rates")], limit_s=160)
call.finish()
