# From typing of the wheel cuda-core 1.2.2 (Apache-2.0, NVIDIA), by `make stubs`.

from typing import TypeAlias
from cuda.bindings import driver
DevicePointerType: TypeAlias = driver.CUdeviceptr | int | None
