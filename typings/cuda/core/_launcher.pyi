# From _launcher of the wheel cuda-core 1.2.2 (Apache-2.0, NVIDIA), by `make stubs`.

import numpy
from cuda.core._launch_config import LaunchConfig
from cuda.core._memory._buffer import Buffer
from cuda.core._module import Kernel
from cuda.core._stream import IsStreamType, Stream
from cuda.core.graph._graph_builder import GraphBuilder

def launch(stream: Stream | GraphBuilder | IsStreamType, config: LaunchConfig, kernel: Kernel, *kernel_args: Buffer | int | float | bool | numpy.generic) -> None: ...
