"""The blocking half of the client is what ``make sync`` makes of the half for event loops."""

from __future__ import annotations

import pytest

from onestream.client.make_sync import HERE, MADE, made_of


@pytest.mark.parametrize("made", MADE)
def test_the_blocking_half_is_made_of_the_other(made: str) -> None:
    source = HERE / MADE[made]
    assert (HERE / made).read_text(encoding="utf-8") == made_of(source.read_text(encoding="utf-8"), source.name)
