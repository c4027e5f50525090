"""Finds the first difference between two definitions, for errors to name."""

from __future__ import annotations

from typing import Any

from onestream.preprocess.definition import Definition


def first_difference(left: Definition, right: Definition) -> str:
    """Name the first field in which two definitions differ, with both values; empty when they are equal.

    >>> from onestream.preprocess.operations import Decode
    >>> first_difference(Definition(operations=[Decode()]), Definition(operations=[Decode(color="gray")]))
    "operations[0].color: 'rgb' != 'gray'"
    """
    return _difference("", left.model_dump(mode="json"), right.model_dump(mode="json"))


def _difference(path: str, left: Any, right: Any) -> str:
    if isinstance(left, dict) and isinstance(right, dict):
        for key in (*left, *(key for key in right if key not in left)):
            found = _difference(f"{path}.{key}".lstrip("."), left.get(key), right.get(key))
            if found:
                return found
        return ""
    if isinstance(left, list) and isinstance(right, list):
        for index, (one, other) in enumerate(zip(left, right, strict=False)):
            found = _difference(f"{path}[{index}]", one, other)
            if found:
                return found
        return "" if len(left) == len(right) else f"{path}: {len(left)} entries != {len(right)} entries"
    return "" if left == right and type(left) is type(right) else f"{path}: {left!r} != {right!r}"
