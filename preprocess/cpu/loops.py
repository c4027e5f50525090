"""Compiles fast loops for a CPU: by Numba, when their module is first imported, cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

_Loop = TypeVar("_Loop", bound=Callable[..., Any])


def compiled(*signatures: str) -> Callable[[_Loop], _Loop]:
    """Compile a function for Numba signatures, without the global interpreter lock.

    No reassociation and no fused multiply-add is allowed, so the results do not depend on the machine's vector width.
    """
    decorator: Callable[[_Loop], _Loop] = njit(list(signatures), cache=True, nogil=True, error_model="numpy")
    return decorator
