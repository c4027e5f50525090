"""The proof of one stream, with the engine that is there."""

from __future__ import annotations

from call import Call

call = Call("one_stream")
call.pytest("one-stream", "tests/gpu/test_gpu_one_stream.py", "-k", "not dali and not cpu", limit_s=540)
call.finish()
