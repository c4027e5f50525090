"""What requests over HTTP have in common."""

from __future__ import annotations

BODY_TYPE = "application/octet-stream"
"""The Content-Type of every HTTP body that Triton reads; servers of `onestream serve` take no other. A browser asks
before it lets a page of another origin send it, and Triton does not consent, so pages cannot reach the parsers of
Triton 2.51, which some bodies crash."""
