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


def run(environment: Path, *arguments: object) -> dict[str, object]:
    """Run the program in an environment; what it printed last."""
    ended = subprocess.run(
        [environment / "bin" / "python", PROGRAM, *map(str, arguments)],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert ended.returncode == 0, ended.stderr
    report: dict[str, object] = json.loads(ended.stdout.splitlines()[-1])
    return report


def install(environment: Path, *arguments: str) -> None:
    """By this environment's pip; only what is imported is compiled."""
    command = [sys.executable, "-m", "pip", f"--python={environment}/bin/python", "install", "--quiet", "--no-compile"]
    done = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )
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
    seen = {}
    for name, where in (("here", Path(sys.prefix)), ("there", environment)):
        folder = tmp_path / name
        folder.mkdir()
        report = run(where, "client", folder, PHOTOS, server.grpc_url, server.http_url)
        assert str(report["numpy"]).startswith("1." if name == "here" else "2.")
        answers = json.loads((folder / "answers.json").read_text())
        assert len(answers) == 6
        seen[name] = (answers, parquet.read_table(folder / "bulk.parquet").drop_columns(["latency_ms"]).to_pylist())
    assert seen["there"] == seen["here"]


@pytest.mark.night
def test_training_makes_the_same_batches(tmp_path: Path) -> None:
    """`train` and `video`, by the Makefile's own target."""
    environment = tmp_path / "environment"
    stamp = environment / ".train"
    made = subprocess.run(
        ["make", f"PYTHON={sys.executable}", f"VENV={environment}", str(stamp)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    video = write_video(tmp_path / "numbered.mp4", "libx264")
    seen = {}
    for name, where in (("here", Path(sys.prefix)), ("there", environment)):
        folder = tmp_path / name
        folder.mkdir()
        report = run(where, "train", folder, PHOTOS, video)
        assert str(report["numpy"]).startswith("1." if name == "here" else "2.")
        seen[name] = np.load(folder / "batches.npz")
    assert set(seen["there"].files) == set(seen["here"].files)
    for name in seen["here"].files:
        assert np.array_equal(seen["there"][name], seen["here"][name]), name
