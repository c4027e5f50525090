"""OpenVINO's tests, in a process of their own: beside PyTorch and all else that a worker of the suite loads, it has
ended the process later. A model's process loads none of that."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("openvino_cases.py")


@pytest.mark.skipif(not find_spec("openvino"), reason="no openvino: pip install -e '.[openvino]'")
def test_networks_run_by_openvino() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
