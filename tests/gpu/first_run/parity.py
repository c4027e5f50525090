"""Every stage of the cvcuda backend against the reference, and its predictions."""

from __future__ import annotations

from call import Call

call = Call("parity")
call.pytest("parity", "tests/gpu/test_gpu_parity.py", "-k", "cvcuda and not hq", limit_s=540)
call.finish()
