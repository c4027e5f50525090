"""The names of priorities, and their order in Triton."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onestream.wire.priority import PRIORITIES, check_priority


def test_a_lower_level_goes_first_and_there_is_no_gap() -> None:
    # Triton's levels begin at 1; 0 is no level but the default.
    assert PRIORITIES == {"high": 1, "normal": 2, "low": 3}
    assert list(map(check_priority, PRIORITIES)) == ["high", "normal", "low"]


@given(st.text().filter(lambda name: name not in PRIORITIES))
def test_others_are_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match="expected one of high, normal, low") as caught:
        check_priority(name)
    assert repr(name) in str(caught.value)
