"""Compiles fast loops for a CPU: by Numba, when their module is first imported, cached on disk.

Of several processes that need the same loop at once, one compiles it, and the others wait and load it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from numba import config, njit

from onestream.preprocess.cpu.file_lock import locked

try:
    from numba.core.caching import FunctionCache
    from numba.core.runtime import rtsys
except ImportError:  # neither is public
    FunctionCache = object

_Loop = TypeVar("_Loop", bound=Callable[..., Any])

_KNOWN = all(hasattr(FunctionCache, part) for part in ("_load_overload", "save_overload", "cache_path"))
"""Whether Numba's cache has what ``_CompiledOnce`` takes of it; otherwise Numba alone keeps loops."""


class _CompiledOnce(FunctionCache):  # type: ignore[misc]  # untyped
    """Numba's cache of one function. Where it lacks the function, it holds a lock until ``compiling`` is closed."""

    def __init__(self, function: Callable[..., Any], compiling: ExitStack) -> None:
        super().__init__(function)
        self._compiling = compiling
        self._lock: Path | None = Path(self.cache_path) / f"{function.__module__}.{function.__qualname__}.lock"

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The loop from the cache, or None where this process must compile it."""
        # Numba's own calls `refresh`, which takes 20 MB and half a second, and which only its compiler needs and calls.
        rtsys.initialize(context)
        found = self._load_overload(signature, context)
        if found is None and self._lock is not None:
            # Where a file system has no locks, several processes compile the same.
            with suppress(OSError):
                self._compiling.enter_context(locked(self._lock))
            self._lock = None
            found = self._load_overload(signature, context)
        return found


def compiled(*signatures: str, inline: Literal["never", "always"] = "never") -> Callable[[_Loop], _Loop]:
    """Compile a function for Numba signatures, without the global interpreter lock.

    ``inline``: whether it becomes part of its callers, where its constant arguments are constants.

    No reassociation and no fused multiply-add is allowed, so the results do not depend on the machine's vector width.
    """
    options = {"nogil": True, "error_model": "numpy", "inline": inline}
    if config.DISABLE_JIT or not _KNOWN:
        plain: Callable[[_Loop], _Loop] = njit(list(signatures), cache=True, **options)
        return plain

    def compile_now(function: _Loop) -> _Loop:
        loop = njit(**options)(function)
        with ExitStack() as compiling:
            loop._cache = _CompiledOnce(function, compiling)
            for signature in signatures:
                loop.compile(signature)
        loop.disable_compile()
        ready: _Loop = loop
        return ready

    return compile_now
