"""Fields of Triton's ``ModelConfig`` by the role of a model, as a value that options can hold."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

Role = dict[str, Any]


class _Roles(dict[str, Role]):
    """Fields by role. Nothing changes it, so that options that hold it can be keys."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self))


RoleFields = Annotated[dict[str, Role], AfterValidator(_Roles), Field(validate_default=True)]
"""What ``onestream.serving.building.triton_options`` merges."""
