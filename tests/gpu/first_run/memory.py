"""Memory over thousands of batches, damaged files, second chances."""

from __future__ import annotations

from call import Call

call = Call("memory")
call.pytest("memory", "tests/gpu/test_gpu_memory.py", "-k", "not dali", limit_s=540)
call.finish()
