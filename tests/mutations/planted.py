"""What a planted fault is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """A deliberate fault in the product, which the tests should find.

    ``file`` is relative to the repository. In it ``old`` occurs exactly once, and ``new`` takes its place. ``tests``
    are the paths, as pytest takes them, of the narrowest tests that should find the fault. ``slow``: only a test with
    the marker of that name can find it.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    slow: bool = False
