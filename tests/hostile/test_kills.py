"""Each process of a server is killed and stopped once under load: it is served again, and nothing is left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hostile.kills import MODELS, SIGNALS, VICTIMS, measure

pytestmark = pytest.mark.needs_triton


def check(repository: Path, victims: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    rounds = tuple((victim, number) for victim in victims for number in SIGNALS)

    def progress(line: str) -> None:
        with capsys.disabled():
            print(line)

    found: Any = measure(rounds=len(rounds), seed=0, progress=progress, repository=repository, victims=rounds)
    seen = {(one["victim"], one["signal"]) for one in found["rounds"]}
    assert seen == {(victim, number.name) for victim, number in rounds}
    assert all(one["served_again_s"] is not None for one in found["rounds"]), found
    assert (found["orphans"], found["regions_left"], found["folders_left"]) == (0, 0, 0), found
    assert found["untyped"] == {}
    assert found["hurt"] == {}
    assert found["requests"] > sum(found["failed"].values())


@pytest.mark.slow
def test_served_again_and_nothing_left(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of those that ``test_supervised`` does not kill: the guard and the command."""
    assert {"guard", "serve"} < set(VICTIMS)
    check(repository, ("guard", "serve"), capsys)


@pytest.mark.night
def test_so_after_every_other_victim(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(repository, (*MODELS, "tritonserver"), capsys)
