"""Memory over thousands of batches, damaged files, second chances. Needs the wheels for images."""

from __future__ import annotations

from call import Call

call = Call("memory")
call.pytest("memory", "tests/gpu/test_gpu_memory.py", "-k", "not dali", limit_s=540)
call.finish()
