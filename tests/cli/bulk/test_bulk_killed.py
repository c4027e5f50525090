"""``onestream bulk`` as a process, against a real server: killed, interrupted, and watched on a terminal."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from bulk_fakes import csv_rows, json_rows
from patience import PATIENCE_S, wait_until
from ray_clusters import PHOTOS, ROOT
from shared_server import SharedServer
from terminal_runs import on_terminal
from typer.testing import CliRunner

from onestream.cli.main import app

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


def begun(server: SharedServer, sources: list[str], out: Path, *options: str, lines: int) -> subprocess.Popen[str]:
    """A run that has written so many lines of its journal."""
    words = command(server, *sources, "--to", str(out), *options)
    process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    journal = out.with_name(f"{out.name}.journal")

    def written() -> bool:
        assert process.poll() is None, f"the run ended before {lines} lines were written"
        return journal.exists() and journal.read_bytes().count(b"\n") >= lines

    wait_until(written)
    return process


def labels(out: Path) -> list[tuple[str, str, str]]:
    """Path, key and label or error of every row."""
    return [(row["path"], row.get("key", ""), row.get("error") or row["labels"][0]) for row in json_rows(out)]


def test_a_run_that_is_killed_again_and_again_ends_with_every_row_once(
    server: SharedServer, sources: list[str], tmp_path: Path
) -> None:
    out, journal, whole = (tmp_path / name for name in ("out.jsonl", "out.jsonl.journal", "whole.jsonl"))
    for lines in (1, 60):
        process = begun(server, sources, out, lines=lines)
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
    errors = [(row["path"], row["key"], row["error"]) for row in csv_rows(tmp_path / "out.jsonl.errors.csv")]
    assert errors == [row for row in labels(out) if row[2] == "corrupt"]
    assert not journal.exists()


def test_ctrl_c_ends_quickly_and_says_how_to_go_on(server: SharedServer, sources: list[str], tmp_path: Path) -> None:
    process = begun(server, sources, tmp_path / "out.csv", "--shared-memory", lines=20)
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
    for told in (f"/{IMAGES}", "images/s", "failed"):
        assert told in shown
