"""Client and training in environments of their own, with NumPy 2 and no server: they give what they give here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from clip_files import write_video
from shared_server import SharedServer

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("without_server.py")
PHOTOS = ROOT / "examples" / "photos"
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def interpreters() -> dict[str, str]:
    """Executables by version, of the versions that onestream supports."""
    found = {HERE: sys.executable}
    for version in {"3.10", "3.11", "3.12", "3.13"} - {HERE}:
        candidates = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
        for candidate in filter(None, candidates):
            if subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
                found[version] = str(candidate)
                break
    return found


@pytest.fixture(scope="module", autouse=True)
def _network() -> None:
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple/")
    try:
        urllib.request.urlopen(index, timeout=30).close()
    except OSError as error:
        pytest.skip(f"packages cannot be installed here: {index}: {error}")


def in_both(environment: Path, tmp_path: Path, part: str, *arguments: object) -> list[Path]:
    """The folders that a part of the program wrote here, with NumPy 1, and in the environment, with NumPy 2."""
    folders = []
    for name, where, numpy in (("here", Path(sys.prefix), "1."), ("there", environment, "2.")):
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        command = [where / "bin" / "python", PROGRAM, part, folders[-1], *map(str, arguments)]
        ended = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=1200)
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout.splitlines()[-1])["numpy"].startswith(numpy)
    return folders


def install(environment: Path, *arguments: str) -> None:
    """By this environment's pip; only what is imported is compiled."""
    command = [sys.executable, "-m", "pip", f"--python={environment}/bin/python", "install", "--quiet", "--no-compile"]
    done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("which", ["this", pytest.param("newest", marks=pytest.mark.night)])
def test_a_client_gets_the_same_answers(server: SharedServer, tmp_path: Path, which: str) -> None:
    """Base, `async` and `bulk`; PyTorch, gigabytes where PyPI has it with CUDA only, is left out."""
    import pyarrow.parquet as parquet

    found = {HERE: sys.executable} if which == "this" else interpreters()
    python = found[max(found, key=lambda version: int(version.partition(".")[2]))]
    environment = tmp_path / "environment"
    subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True, timeout=120)
    install(environment, "--require-hashes", "--no-deps", "-r", "locks/train.txt")
    install(environment, "--no-build-isolation", "--no-deps", "-e", ".")
    seen = []
    for folder in in_both(environment, tmp_path, "client", PHOTOS, server.grpc_url, server.http_url):
        answers = json.loads((folder / "answers.json").read_text())
        assert len(answers) == 6
        table = parquet.read_table(folder / "bulk.parquet").drop_columns(["latency_ms"])
        seen.append((answers, table.to_pylist()))
    assert seen[0] == seen[1]


@pytest.mark.night
def test_training_makes_the_same_batches(tmp_path: Path) -> None:
    """`train` and `video`, by the Makefile's own target."""
    environment = tmp_path / "environment"
    command = ["make", f"PYTHON={sys.executable}", f"VENV={environment}", str(environment / ".train")]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert made.returncode == 0, made.stdout + made.stderr
    video = write_video(tmp_path / "numbered.mp4", "libx264")
    here, there = (np.load(folder / "batches.npz") for folder in in_both(environment, tmp_path, "train", PHOTOS, video))
    assert set(there.files) == set(here.files)
    for name in here.files:
        assert np.array_equal(there[name], here[name]), name
