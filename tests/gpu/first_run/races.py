"""A mixed batch on two streams, alone and under compute-sanitizer."""

from __future__ import annotations

from call import Call

MEMCHECK = ("compute-sanitizer", "--tool", "memcheck", "--track-stream-ordered-races", "all", "--error-exitcode", "3")
TESTS = "tests/gpu/test_gpu_races.py"

call = Call("races")
call.pytest("races", TESTS, limit_s=120)
call.pytest("memcheck", TESTS, limit_s=420, under=MEMCHECK)
call.finish()
