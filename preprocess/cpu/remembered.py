"""Keeps the tables that were made for lines of pixels, which images of one size need again."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

LONGEST_REMEMBERED = 8192
"""Weights of a line of this many pixels take 64 KB and more; longer ones are rare and are not kept."""

_Make = TypeVar("_Make", bound=Callable[..., Any])


def _of_span(_count: int, _start: float, _end: float, source: int, *_rest: object) -> int:
    return source


def remembered(at_most: int, *, source: Callable[..., int] = _of_span) -> Callable[[_Make], _Make]:
    """Let a function that makes tables keep the last ``at_most``, but not those of lines that are too long.

    ``source`` gives the pixels of a call's line from its arguments; by default (count, start, end, source, …).
    """

    def decorate(make: _Make) -> _Make:
        kept = lru_cache(at_most)(make)

        @wraps(make)
        def table(*arguments: Any, **options: Any) -> Any:
            is_kept = source(*arguments, **options) <= LONGEST_REMEMBERED
            return (kept if is_kept else make)(*arguments, **options)

        return cast("_Make", table)

    return decorate
