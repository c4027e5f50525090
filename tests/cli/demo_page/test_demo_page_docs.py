"""The commands of docs/demo-page.md run, and what it shows is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from urllib.request import urlopen

import pytest
from page_process import ROOT, PageProcess
from shared_server import SharedServer

TEXT = (ROOT / "docs" / "demo-page.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_commands_run(server: SharedServer, repository: Path) -> None:
    (block,) = re.findall(r"^```bash\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    serve, ask = (shlex.split(line, comments=True)[2:] for line in block.splitlines())
    assert repository == ROOT / "model_repository", "where the command looks"
    for arguments in (serve, [one.replace("127.0.0.1:8001", server.grpc_address) for one in ask]):
        with PageProcess(*arguments, "--port", "0") as page:
            with urlopen(page.url, timeout=30) as answer:
                assert b"What the network saw" in answer.read()
            status, found = page.ask("/api/pipelines")
            assert status == 200
            assert {"classify", "classify_fused"} <= {one["name"] for one in found["pipelines"]}
