# From the wheel cuda-core 1.2.2 (Apache-2.0, NVIDIA), by `make stubs`.

from cuda.core._memory._buffer import Buffer as Buffer
from cuda.core._memory._buffer import MemoryResource as MemoryResource
from cuda.core._memory._device_memory_resource import DeviceMemoryResourceOptions as DeviceMemoryResourceOptions
from cuda.core._memory._device_memory_resource import DeviceMemoryResource as DeviceMemoryResource
from cuda.core._memory._legacy import LegacyPinnedMemoryResource as LegacyPinnedMemoryResource
