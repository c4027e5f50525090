"""What is compared must agree before any of it is timed."""

from __future__ import annotations


class Disagreement(Exception):
    """Two ways that are to be compared give different results; the message names both, and nothing is timed."""
