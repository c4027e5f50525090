"""What the Makefile installs, and from where: run with a stand-in for Python that notes what pip is asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CPU_INDEX = "--index-url https://download.pytorch.org/whl/cpu"
Make = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder that is all of PATH: what the recipes run; no nvidia-smi, no Python, and a sleep that does not."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, program in {**{name: name for name in ("make", "sh", "tail", "touch", "env")}, "sleep": "true"}.items():
        found = shutil.which(program)
        (folder / name).symlink_to(found)
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment whose Python only notes its arguments.

    It fails at what ``FAILS_AT`` holds, and says that the machine's TensorRT is what ``FINDS`` holds.
    """
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\necho "$*" >> "${0%/*}/../asked"\n'
        'case "$1" in *tensorrt_bindings.py) [ -z "$FINDS" ] && echo none || echo "$FINDS";; esac\n'
        'if [ -n "$FAILS_AT" ]; then case "$*" in *"$FAILS_AT"*) exit 1;; esac; fi\nexit 0\n'
    )
    python.chmod(0o755)
    return tmp_path / "venv"


@pytest.fixture
def make(programs: Path, environment: Path) -> Make:
    def run(*stamps: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [programs / "make", f"VENV={environment}", *(f"{environment}/{stamp}" for stamp in stamps)],
            cwd=ROOT,
            env={"PATH": str(programs), **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def asked(environment: Path) -> list[str]:
    """What pip was asked to install, without the options that it always has."""
    lines = (environment / "asked").read_text().splitlines() if (environment / "asked").exists() else []
    return [line.split(" install ", 1)[1].replace("--quiet ", "") for line in lines if " install " in line]


LOCKED = "--no-build-isolation --require-hashes --no-deps -r locks/{}.txt"
ITSELF = "--no-build-isolation --no-deps -e ."


def test_without_a_gpu_each_comes_from_its_lock_and_pytorch_is_the_small_build(make: Make, environment: Path) -> None:
    done = make(".serve", ".page", ".bench", ".train")
    assert done.returncode == 0, done.stderr
    assert asked(environment) == [
        *(LOCKED.format("serve"), ITSELF),
        *(LOCKED.format("page"), ITSELF),
        *(LOCKED.format("bench"), ITSELF),
        *(LOCKED.format("train"), ITSELF, f"{CPU_INDEX} -r locks/torch.txt"),
    ]


def test_without_pytorch_s_index_pypi_s_build_is_taken(make: Make, environment: Path) -> None:
    done = make(".train", FAILS_AT=CPU_INDEX)
    assert done.returncode == 0, done.stderr
    assert asked(environment)[-2:] == [f"{CPU_INDEX} -r locks/torch.txt", "-r locks/torch.txt"]
    assert "has no such builds or cannot be reached" in done.stdout


def test_with_a_gpu_pytorch_and_tensorrt_s_bindings_are_those_for_it(
    make: Make, environment: Path, programs: Path
) -> None:
    (programs / "nvidia-smi").symlink_to(programs / "env")
    assert make(".dev-gpu", ".gpu", FINDS="tensorrt-cu13==10.13.3.*").returncode == 0
    # Built by the locked setuptools.
    of_tensorrt = "--no-build-isolation --no-deps tensorrt-cu13==10.13.3.*"
    assert asked(environment) == [
        *(LOCKED.format("serve"), ITSELF),
        *(LOCKED.format("dev"), ITSELF, "-r locks/torch.txt"),
        *(LOCKED.format("dev-gpu"), ITSELF, of_tensorrt),
        *(LOCKED.format("gpu"), ITSELF, of_tensorrt),
    ]
    lines = (environment / "asked").read_text().splitlines()
    looked = [line for line in lines if "tensorrt_bindings.py" in line]
    # A server is for TensorRT; the tests run what is there.
    assert [line.endswith("--if-there") for line in looked] == [True, False]
    # Packages of ONNX Runtime and of DALI hold the same files: what removes one later damages the other.
    (removed,) = [at for at, line in enumerate(lines) if "uninstall --quiet --yes onnxruntime " in line]
    (before,) = [at for at, line in enumerate(lines) if "locks/dev.txt" in line]
    (after,) = [at for at, line in enumerate(lines) if "locks/dev-gpu.txt" in line]
    assert before < removed < after
    assert {"onnxruntime-gpu", "nvidia-dali-cuda120", "nvidia-dali-cuda130"} <= set(lines[removed].split())


def test_a_failed_installation_is_not_taken_for_done(make: Make, environment: Path) -> None:
    assert make(".serve").returncode == 0
    for failing in ("locks/dev.txt", "-e .", "locks/torch.txt"):
        assert make(".dev", FAILS_AT=failing).returncode != 0
        assert not (environment / ".dev").exists()
    # Without TensorRT on the machine the tests have none.
    assert make(".dev-gpu", FAILS_AT="locks/dev-gpu.txt").returncode != 0
    assert not (environment / ".dev-gpu").exists()
    assert not [one for one in asked(environment) if "tensorrt" in one]
    # A server on a GPU needs it.
    assert make(".gpu", FAILS_AT="tensorrt_bindings.py").returncode != 0
    assert not (environment / ".gpu").exists()


def test_a_changed_lock_is_installed_and_an_unchanged_one_is_not(make: Make, environment: Path) -> None:
    def at(moment: float) -> None:
        os.utime(environment / ".serve", (moment, moment))

    assert make(".serve").returncode == 0
    first = len(asked(environment))
    at(time.time() + 60)
    assert make(".serve").returncode == 0
    assert len(asked(environment)) == first
    at((ROOT / "locks" / "serve.txt").stat().st_mtime - 60)
    assert make(".serve").returncode == 0
    assert len(asked(environment)) == 2 * first


def test_a_python_without_the_server_is_refused_with_what_to_do(make: Make, environment: Path) -> None:
    done = make(".serve", FAILS_AT="sys.version_info >= (3, 13)")
    assert done.returncode != 0
    assert "make PYTHON=/path/to/python3.12" in done.stdout
    assert "make install-train" in done.stdout
    assert asked(environment) == []


@pytest.mark.parametrize(
    ("versions", "found"),
    [
        ({"python3": "3.13", "python3.11": "3.11"}, "python3.11"),
        ({"python3": "3.9", "python3.13": "3.13"}, "python3.13"),
        ({"python3": "3.14"}, None),
    ],
)
def test_a_python_that_can_serve_is_preferred(
    programs: Path, tmp_path: Path, versions: dict[str, str], found: str | None
) -> None:
    for name, version in versions.items():
        numbers = version.replace(".", ", ")
        program = programs / name
        # The real Python decides, on the version that this one claims to be.
        program.write_text(
            f'#!/bin/sh\ncase "$1" in -c) code=$2;; *) echo "$0 $*" >> {tmp_path}/started; exit 1;; esac\n'
            f"exec {sys.executable} -c \"import sys; sys.version_info = ({numbers}, 0, 'final', 0); $code\"\n"
        )
        program.chmod(0o755)
    done = subprocess.run(
        [programs / "make", f"VENV={tmp_path}/new", f"{tmp_path}/new/bin/python"],
        cwd=ROOT,
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    if found is None:
        assert "No Python 3.10 to 3.13 found" in done.stdout
    else:
        started = (tmp_path / "started").read_text().splitlines()
        assert f"{programs}/{found} -m venv {tmp_path}/new" in started
