"""Parameters of a request that are Triton's own or its clients': pipelines pass over them."""

from __future__ import annotations

RESERVED_PREFIX = "triton_"
"""Begins names that Triton keeps for itself."""

TRITON_PARAMETERS = frozenset(
    {
        # The inference protocol: https://github.com/triton-inference-server/server/tree/main/docs/protocol
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "binary_data",
        "binary_data_output",
        "classification",
        "shared_memory_region",
        "shared_memory_byte_size",
        "shared_memory_offset",
        # What clients of the KServe protocol send beside: MLServer's, and those of its gateways.
        "content_type",
        "headers",
    }
)
"""Names that every model passes over, whether Triton hands them on or keeps them."""


def is_reserved(name: str) -> bool:
    """Whether a parameter of this name is none of a pipeline's."""
    return name in TRITON_PARAMETERS or name.startswith(RESERVED_PREFIX)
