"""Images per second of every backend, and of the fused form with the engine that is there."""

from __future__ import annotations

import sys

from call import Call

RATES = ("--only", "preprocess", "--only", "fused", "--minutes", "6", "--commit", "carried")

call = Call("rates")
call.run("rates", [sys.executable, "-m", "benchmarks.gpu", *RATES, "--out", str(call.out / "rates")], limit_s=540)
call.finish()
