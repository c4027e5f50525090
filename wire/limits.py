"""What both sides take for granted: where a server is, how large an encoded image may be, how long an answer takes,
and which parameters of a request are Triton's own or its clients', which pipelines pass over."""

from __future__ import annotations

DEFAULT_URL = "127.0.0.1:8001"
"""Where Triton serves gRPC on this machine unless told otherwise."""

DEFAULT_MAX_BODY_BYTES = 32 * 1024 * 1024
"""Bytes of the largest encoded image, where a pipeline's file or a model's configuration states no other limit."""

MAX_BODY_BYTES_PARAMETER = "max_body_bytes"
"""The parameter of a model's configuration that states its limit, in decimal digits."""

MAX_PIXELS_PARAMETER = "max_pixels"
"""The parameter of a model's configuration that states how many pixels an image may have, in decimal digits."""

MAX_INPUT_VALUES_PARAMETER = "max_input_values"
"""The parameter of a model's configuration that states how many values a request's input of varying size may have, in
decimal digits."""

PICTURES_PARAMETER = "pictures"
"""The parameter of a model's configuration with the names of its inputs that are encoded images, beside *image*, with
commas between."""

DEFAULT_TIMEOUT_S = 10
"""Seconds for which a client waits for the answer to an image, where neither the caller nor the model states others."""

MAX_TIMEOUT_S = 3600
"""The most seconds that a model may state."""

TIMEOUT_PARAMETER = "timeout_s"
"""The parameter of a model's configuration that states its seconds, in decimal digits."""

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
