"""``onestream bulk`` as a process, against a real server: killed, interrupted, and watched on a terminal."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from patience import PATIENCE_S, wait_until
from shared_server import SharedServer
from terminal_runs import on_terminal
from typer.testing import CliRunner

from onestream.cli.main import app

ROOT = Path(__file__).parents[3]
PHOTOS = sorted((ROOT / "examples" / "photos").glob("*.jpg"))
COPIES = 12
IMAGES = 2 * COPIES * len(PHOTOS)

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    """A folder and a shard, 144 images altogether, of which every photo's last copy is cut."""
    folder = tmp_path / "photos"
    folder.mkdir()
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        for number in range(COPIES):
            for photo in PHOTOS:
                path = folder / f"{number:02}-{photo.name}"
                data = photo.read_bytes()
                path.write_bytes(data if number < COPIES - 1 else data[:2000])
                tar.add(path, path.name)
    return [str(folder), str(tmp_path / "shard.tar")]


def command(server: SharedServer, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "onestream", "bulk", "--url", server.grpc_address, *arguments]


def wait_for_lines(journal: Path, count: int, process: subprocess.Popen[str]) -> None:
    def written() -> bool:
        assert process.poll() is None, f"the run ended before {count} lines were written"
        return journal.exists() and journal.read_bytes().count(b"\n") >= count

    wait_until(written)


def labels(out: Path) -> list[tuple[str, str, str]]:
    """Path, key and label or error of every row."""
    rows = map(json.loads, out.read_text().splitlines())
    return [(row["path"], row.get("key", ""), row.get("error") or row["labels"][0]) for row in rows]


def test_a_run_that_is_killed_again_and_again_ends_with_every_row_once(
    server: SharedServer, sources: list[str], tmp_path: Path
) -> None:
    out, journal, whole = (tmp_path / name for name in ("out.jsonl", "out.jsonl.journal", "whole.jsonl"))
    for lines in (1, 60):
        process = subprocess.Popen(
            command(server, *sources, "--to", str(out)), cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        wait_for_lines(journal, lines, process)
        process.kill()
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == -signal.SIGKILL
        assert not out.exists()
    kept = journal.read_bytes().count(b"\n") - 1
    words = ["bulk", "--url", server.grpc_address, *sources, "--to"]
    done = CliRunner().invoke(app, [*words, str(out)])
    assert done.exit_code == 1
    assert f"going on after {kept} images" in done.stderr
    assert f"{IMAGES} images, {2 * len(PHOTOS)} failed" in done.stderr
    CliRunner().invoke(app, [*words, str(whole)])
    assert labels(out) == labels(whole)
    assert len(labels(out)) == len({row[:2] for row in labels(out)}) == IMAGES
    with (tmp_path / "out.jsonl.errors.csv").open(newline="") as file:
        errors = list(csv.DictReader(file))
    assert [(row["path"], row["key"], row["error"]) for row in errors] == [
        row for row in labels(out) if row[2] == "corrupt"
    ]
    assert not journal.exists()


def test_ctrl_c_ends_quickly_and_says_how_to_go_on(server: SharedServer, sources: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    process = subprocess.Popen(
        command(server, *sources, "--to", str(out), "--shared-memory"),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_lines(tmp_path / "out.csv.journal", 20, process)
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    (done,) = re.findall(r"interrupted after (\d+) images", complaints)
    assert int(done) < IMAGES
    assert "the same command goes on" in complaints
    assert "Traceback" not in complaints
    assert list(Path("/dev/shm").glob(f"onestream_{process.pid}_*")) == []


def test_a_terminal_shows_the_progress_and_the_output_stays_clean(
    server: SharedServer, sources: list[str], tmp_path: Path
) -> None:
    code, shown = on_terminal(command(server, *sources), cwd=ROOT, stdout=tmp_path / "out")
    out = (tmp_path / "out").read_text()
    assert code == 1
    assert len(out.splitlines()) == IMAGES + 1
    assert "\x1b" not in out
    assert f"/{IMAGES}" in shown
    assert "images/s" in shown
    assert "failed" in shown
