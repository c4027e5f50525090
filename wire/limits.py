"""How large an encoded image may be, and where a model states it."""

from __future__ import annotations

DEFAULT_MAX_BODY_BYTES = 32 * 1024 * 1024
"""Bytes of the largest encoded image, where a pipeline's file or a model's configuration states no other limit."""

MAX_BODY_BYTES_PARAMETER = "max_body_bytes"
"""The parameter of a model's configuration that states its limit, in decimal digits."""
