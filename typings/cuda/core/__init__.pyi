# From the wheel cuda-core 1.2.2 (Apache-2.0, NVIDIA), by `make stubs`.

from cuda.core._context import Context as Context
from cuda.core._device import Device as Device
from cuda.core._event import EventOptions as EventOptions
from cuda.core._event import Event as Event
from cuda.core._launch_config import LaunchConfig as LaunchConfig
from cuda.core._launcher import launch as launch
from cuda.core._memory._buffer import Buffer as Buffer
from cuda.core._memory._buffer import MemoryResource as MemoryResource
from cuda.core._memory._device_memory_resource import DeviceMemoryResourceOptions as DeviceMemoryResourceOptions
from cuda.core._memory._device_memory_resource import DeviceMemoryResource as DeviceMemoryResource
from cuda.core._memory._legacy import LegacyPinnedMemoryResource as LegacyPinnedMemoryResource
from cuda.core._module import Kernel as Kernel
from cuda.core._module import ObjectCode as ObjectCode
from cuda.core._program import ProgramOptions as ProgramOptions
from cuda.core._program import Program as Program
from cuda.core._stream import LEGACY_DEFAULT_STREAM as LEGACY_DEFAULT_STREAM
from cuda.core._stream import PER_THREAD_DEFAULT_STREAM as PER_THREAD_DEFAULT_STREAM
from cuda.core._stream import StreamOptions as StreamOptions
from cuda.core._stream import Stream as Stream
from cuda.core import graph as graph, typing as typing
