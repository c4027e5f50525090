"""Memory, kernels, one JPEG, one resize, one network. Needs the wheels for images."""

from __future__ import annotations

from call import Call

call = Call("smoke")
call.pytest("smoke", "tests/gpu/test_gpu_smoke.py", limit_s=300)
call.finish()
