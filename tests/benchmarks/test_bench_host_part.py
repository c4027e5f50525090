"""The benchmark of the host's part of a GPU batch runs here, whatever it measures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_two_checkouts_are_measured_in_turns() -> None:
    command = [sys.executable, "benchmarks/gpu/host_part.py", "--against", ".", "--rounds", "1", "--batches", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["headers", "known", "new"]
    assert done.stdout.count("times as many") == 3
