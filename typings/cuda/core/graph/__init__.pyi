# From the wheel cuda-core 1.2.2 (Apache-2.0, NVIDIA), by `make stubs`.

from cuda.core.graph._graph_builder import GraphDebugPrintOptions as GraphDebugPrintOptions
from cuda.core.graph._graph_builder import GraphCompleteOptions as GraphCompleteOptions
from cuda.core.graph._graph_builder import GraphBuilder as GraphBuilder
from cuda.core.graph._graph_builder import Graph as Graph
