"""The program of docs/async.md runs and prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from onestream.serving.server.server import Server

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "async.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.needs_triton
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_the_program_of_the_page_runs(server: Server, protocol: str) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    program = program.replace("127.0.0.1:8001", server.grpc_address if protocol == "grpc" else server.http_url, 1)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    first, *items = done.stdout.splitlines()
    assert first == "espresso"
    assert [line.split(maxsplit=1)[0] for line in items] == ["0", "1", "2"]
    assert items[1] == "1 unsupported_format"
