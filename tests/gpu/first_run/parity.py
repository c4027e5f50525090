"""Every stage of the cvcuda backend against the reference, and its predictions. Needs the wheels for images."""

from __future__ import annotations

from call import Call

call = Call("parity")
call.pytest("parity", "tests/gpu/test_gpu_parity.py", "-k", "cvcuda", limit_s=540)
call.finish()
