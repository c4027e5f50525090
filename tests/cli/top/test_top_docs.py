"""The commands of docs/monitoring.md run, and its table is what they print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from shared_server import SharedServer
from terminals import terminal
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.client import Client

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("## In the terminal") : PAGE.index("## The dashboard")]


def test_the_commands_run_and_the_table_is_their_output(server: SharedServer) -> None:
    with Client(server.grpc_address) as client:
        for pipeline in ("classify", "classify_fused"):
            client.classify(ROOT / "examples" / "photos" / "coffee.jpg", pipeline=pipeline)
    (block,) = re.findall(r"^```bash\n(.*?)^```", SECTION, flags=re.MULTILINE | re.DOTALL)
    lines = [shlex.split(line, comments=True)[1:] for line in block.splitlines()]
    printed = []
    for line in lines:
        arguments = [*line, f"--metrics-url={server.metrics_url}"]
        if "--once" in line:
            result = CliRunner().invoke(app, [*arguments, "--interval-s=0.5"], env={"COLUMNS": "80"})
            assert result.exit_code == 0, result.output
            printed.append(result.stdout)
        else:
            with terminal(*arguments, columns=80, rows=400) as running:
                running.wait_for("classify_video")
                # The table's last row, of which the rest is on its way.
                running.read(0.5)
                printed.append("\n".join(running.lines))
                running.type("q")
                assert running.wait() == 0
    assert len(lines) == 4
    (shown,) = re.findall(r"^```text\n(.*?)^```", SECTION, flags=re.MULTILINE | re.DOTALL)
    for text in printed[:3]:
        assert table(text) == table(shown)
    assert printed[3].startswith("{")


def table(text: str) -> list[list[str]]:
    """The words of the headings and of every row of the pipeline, each number as n."""
    lines = text.splitlines()
    heading = next(number for number, line in enumerate(lines) if line.strip().startswith("latency"))
    first, last = (
        next(number for number, line in enumerate(lines) if line.startswith(name))
        for name in ("classify ", "classify_video")
    )
    shown = [*lines[heading : heading + 2], *lines[first : last + 1]]
    return [[re.sub(r"^([\d.]+%?|–)$", "n", word) for word in line.split()] for line in shown]
