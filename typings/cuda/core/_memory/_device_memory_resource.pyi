# From _memory/_device_memory_resource of the wheel cuda-core 1.2.2 (Apache-2.0, NVIDIA), by `make stubs`.
# Left out, with types that are not here: DeviceMemoryResource.from_allocation_handle,
# DeviceMemoryResource.allocation_handle, DeviceMemoryResource.peer_accessible_by.

import uuid
from dataclasses import dataclass
from cuda.core._device import Device
from cuda.core._memory._memory_pool import _MemPool

@dataclass
class DeviceMemoryResourceOptions:
    ipc_enabled: bool = False
    max_size: int = 0

class DeviceMemoryResource(_MemPool):
    def __init__(self, device_id: Device | int, options: DeviceMemoryResourceOptions | None=None) -> None: ...
    def __reduce__(self) -> tuple[object, ...]: ...
    @staticmethod
    def from_registry(uuid: uuid.UUID) -> DeviceMemoryResource: ...
    def register(self, uuid: uuid.UUID) -> DeviceMemoryResource: ...
    @property
    def device_id(self) -> int: ...
    @property
    def is_device_accessible(self) -> bool: ...
    @property
    def is_host_accessible(self) -> bool: ...
