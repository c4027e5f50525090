# From _utils/cuda_utils of the wheel cuda-core 1.2.2 (Apache-2.0, NVIDIA), by `make stubs`.

from typing import NamedTuple

class CUDAError(Exception): ...

class ComputeCapability(NamedTuple):
    major: int
    minor: int
