"""Each process of a server is killed and stopped once under load: it is served again, and nothing is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.hostile.kills import SIGNALS, VICTIMS, measure

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]


@pytest.mark.parametrize("victim", VICTIMS)
def test_served_again_and_nothing_left(repository: Path, victim: str, capsys: pytest.CaptureFixture[str]) -> None:
    victims = tuple((victim, number) for number in SIGNALS)

    def progress(line: str) -> None:
        with capsys.disabled():
            print(line)

    found: Any = measure(rounds=len(victims), seed=0, progress=progress, repository=repository, victims=victims)
    assert [one["signal"] for one in found["rounds"]] in (["SIGKILL", "SIGSTOP"], ["SIGSTOP", "SIGKILL"])
    assert all(one["served_again_s"] is not None for one in found["rounds"]), found
    assert (found["orphans"], found["regions_left"], found["folders_left"]) == (0, 0, 0), found
    assert found["untyped"] == {}
    assert found["hurt"] == {}
    assert found["requests"] > sum(found["failed"].values())
