"""The command of docs/gpu.md that runs the GPU's tests in Triton's container: options, and steps without Docker."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from resolved_compose import ROOT

STAND_IN = """#!/bin/sh
echo "PYTHONPATH=$PYTHONPATH NO_SKIPS=$ONESTREAM_NO_SKIPS ${0##*/} $*" >> "$NOTES"
case "$*" in
    *tensorrt_bindings.py*) echo none;;
    "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; cp "$0" "$3/bin/onestream";;
esac
exit 0
"""


def documented() -> list[str]:
    """The words of the command."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "gpu.md").read_text(), re.DOTALL)
    (command,) = [block for block in blocks if block.startswith("docker run")]
    return shlex.split(command.replace("\\\n", " "))


def options(words: list[str]) -> dict[str, list[str]]:
    """Values by option, for all but ``--rm``."""
    found: dict[str, list[str]] = {}
    for option, value in itertools.pairwise(words[3:]):
        if option.startswith("--"):
            found.setdefault(option, []).append(value)
    return found


def test_the_container_is_the_image_s_and_sees_the_checkout_and_the_gpu() -> None:
    words = documented()
    assert words[:3] == ["docker", "run", "--rm"]
    base = re.search(r"^ARG TRITON_IMAGE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert base is not None
    assert words[-4:-1] == [base[1], "bash", "-c"]
    given = options(words[:-4])
    assert given["--gpus"] == ["all"]
    assert given["--volume"] == [f"$PWD:{given['--workdir'][0]}"]
    # Video needs the last one; the container's own DALI must not be first on Python's path.
    assert given["--env"] == ["PYTHONPATH=", "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"]


@pytest.mark.night
@pytest.mark.slow
def test_its_steps_install_what_the_machine_has_and_run_every_test_that_needs_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout, programs = tmp_path / "checkout", tmp_path / "programs"
    programs.mkdir()
    checkout.mkdir()
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout)
    for name in ("locks", "pipelines", "deploy"):
        shutil.copytree(ROOT / name, checkout / name)
    (checkout / "model_repository" / "classify_fused" / "1").mkdir(parents=True)
    for name in ("apt-get", "python3", "nvidia-smi"):
        (programs / name).write_text(STAND_IN)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv("PYTHONPATH", "")
    steps = documented()[-1].replace("/opt/venv", str(tmp_path / "venv"))
    # What the make around this suite was told is none of this one's business.
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "PYTEST_ARGS")}
    done = subprocess.run(
        ["bash", "-c", steps], cwd=checkout, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    notes = (tmp_path / "notes").read_text().splitlines()
    assert "apt-get install -y --no-install-recommends make python3-venv" in notes[1]
    assert any(line.endswith("deploy/tensorrt_bindings.py --if-there") for line in notes)
    assert any(line.endswith("uninstall --quiet --yes onnxruntime onnxruntime-gpu") for line in notes)
    assert any("onestream build pipelines/classify.yaml" in line for line in notes)
    assert notes[-1] == "PYTHONPATH= NO_SKIPS=1 python -m pytest -m needs_gpu"
