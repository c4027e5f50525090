"""Every stage of the cvcuda backend against the reference, its predictions, and varied pictures."""

from __future__ import annotations

from call import Call

call = Call("parity")
call.pytest("parity", "tests/gpu/test_gpu_parity.py", "-k", "cvcuda and not hq", limit_s=440)
call.pytest("varied", "tests/gpu/test_gpu_varied.py", "-k", "not dali", limit_s=100)
call.finish()
