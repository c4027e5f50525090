"""Each process of a server is killed and stopped once under load: it is served again, and nothing is left.

What is killed in the slow suite: ``real_triton/own_server/test_supervised``, ``serving/server/test_supervisor`` and,
for the guard and the command, ``serving/server/test_serve_command``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.hostile.kills import SIGNALS, VICTIMS, measure

pytestmark = [pytest.mark.needs_triton, pytest.mark.night]


def test_served_again_and_nothing_left(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = tuple((victim, number) for victim in VICTIMS for number in SIGNALS)

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
