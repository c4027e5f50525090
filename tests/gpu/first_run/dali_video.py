"""DALI on the GPU, video by NVDEC, and mattes. Needs the wheels for video."""

from __future__ import annotations

from call import Call

call = Call("dali_video")
call.pytest("dali", "tests/gpu", "-k", "dali or (one_stream and cpu)", limit_s=300)
call.pytest("video", "tests/gpu/test_gpu_video.py", "tests/gpu/test_gpu_matte.py", limit_s=260)
call.finish()
