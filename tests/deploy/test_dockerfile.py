"""The Dockerfile: linted, its steps are those of the Makefile, and what it starts is what the command line accepts."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from proxies import refused
from resolved_compose import ROOT

LAST_MEND_CONTAINER = (26, 6)
"""Year and month of the first container that fixes all that docs/security.md lists."""
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
TARGETS = ("cpu", "gpu")
INSTALLED = {"cpu": ".venv/.serve", "gpu": ".venv/.gpu"}
BUILD = {target: f"make build DEVICE={target} --old-file={mark}" for target, mark in INSTALLED.items()}
HADOLINT = Path(sys.executable).with_name("hadolint")


@dataclass
class BuildStage:
    """A stage of the Dockerfile: its instructions in order, as (name, arguments)."""

    base: str
    instructions: list[tuple[str, str]]

    def all(self, name: str) -> list[str]:
        return [arguments for instruction, arguments in self.instructions if instruction == name]

    def last(self, name: str) -> str:
        return self.all(name)[-1]


def stages() -> dict[str, BuildStage]:
    found: dict[str, BuildStage] = {}
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE))
    for part in re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]:
        head, *lines = part.splitlines()
        base, _, stage = head.partition(" AS ")
        instructions = [line.strip().partition(" ") for line in lines if line.strip()]
        found[stage] = BuildStage(base, [(name, arguments.strip()) for name, _, arguments in instructions])
    return found


STAGES = stages()


def test_the_linter_finds_nothing() -> None:
    done = subprocess.run([HADOLINT, "-"], cwd=ROOT, input=DOCKERFILE, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_base_images_are_pinned_in_one_place_each() -> None:
    pins = dict(re.findall(r"^ARG (\w+_IMAGE)=(\S+)$", DOCKERFILE, re.MULTILINE))
    assert set(pins) == {"DEBIAN_IMAGE", "PYTHON_IMAGE", "TRITON_IMAGE"}
    assert all(re.fullmatch(r"[\w./-]+:\d[\w.-]+", image) for image in pins.values()), pins
    assert {stage.base for stage in STAGES.values()} == {f"${{{name}}}" for name in pins}
    year, month = re.search(r":(\d+)\.(\d+)-py3$", pins["TRITON_IMAGE"]).groups()
    assert (int(year), int(month)) >= LAST_MEND_CONTAINER


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_is_made_by_the_makefile_from_the_lock_of_its_device(target: str) -> None:
    found = [re.sub(r"^--mount=\S+ ", "", step) for step in STAGES[f"{target}-build"].all("RUN")]
    steps = [step for step in found if "apt-get" not in step]
    assert steps == [f"make install DEVICE={target}", BUILD[target]]
    assert len(found) == 3, "besides the system's packages nothing is installed in another way"
    command = ["make", "--dry-run", "install", "build", f"DEVICE={target}", "VENV=/nonexistent"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    lock = {"cpu": "locks/serve.txt", "gpu": "locks/gpu.txt"}[target]
    assert f"install --no-build-isolation --require-hashes --no-deps -r {lock}" in planned
    assert lock in context()
    assert ("tensorrt_bindings.py" in planned) == (target == "gpu")


@pytest.mark.parametrize("target", TARGETS)
def test_an_edit_of_the_code_installs_nothing_anew(target: str, tmp_path: Path) -> None:
    """The installation has the files that it reads, and no others before it."""
    steps = STAGES[f"{target}-build"].instructions
    (installation,) = [number for number, (_, step) in enumerate(steps) if "make install" in step]
    copied = [step.split()[:-1] for name, step in steps[:installation] if name == "COPY"]
    needed = {"Makefile", "pyproject.toml", "README.md", "LICENSE", "locks", "onestream"}
    assert {name for names in copied for name in names} - {"deploy/tensorrt_bindings.py"} == needed
    assert ("COPY", ". .") in steps[installation:]
    for name in needed:
        (tmp_path / name).symlink_to(ROOT / name)
    if target == "gpu":
        (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    command = ["make", "--dry-run", "install", f"DEVICE={target}", "VENV=/nonexistent"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=False).returncode == 0
    # Nor does the build, where the same files come from a checkout that is younger than the installation.
    for path in (".venv/bin/python", INSTALLED[target]):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
        os.utime(tmp_path / path, (0, 0))
    (tmp_path / "pipelines").symlink_to(ROOT / "pipelines")
    command = [*BUILD[target].split(), "--dry-run"]
    planned = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "onestream build" in planned
    assert "deploy/compile_loops.py" in planned
    assert "pip" not in planned.replace("pipelines", "")


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_starts_what_the_command_line_accepts(target: str, tmp_path: Path) -> None:
    stage = STAGES[target]
    nvidia_s = {"cpu": [], "gpu": ["/opt/nvidia/nvidia_entrypoint.sh"]}[target]
    assert json.loads(stage.last("ENTRYPOINT")) == [*nvidia_s, "onestream"]
    arguments = json.loads(stage.last("CMD"))
    options = dict(itertools.pairwise(arguments))
    assert options["--device"] == target
    assert options["--host"] == "0.0.0.0", "a container's loopback cannot be published"
    # It gets as far as looking for the models, so every option is understood.
    assert "does not exist" in refused(*arguments, "--repository", str(tmp_path / "missing"))
    # The health check's file is there, and it waits for the engines.
    check = stage.last("HEALTHCHECK")
    assert json.loads(check[check.index("[") :])[1] in context()
    minutes = re.search(r"--start-period=(\d+)m", check)
    assert int(minutes[1]) * 60 >= (int(options["--startup-timeout-s"]) if target == "gpu" else 120)


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_does_not_run_as_root_and_owns_nothing_but_its_cache(target: str) -> None:
    stage = STAGES[target]
    assert stage.last("USER") == "1000:1000"
    assert stage.all("COPY") == [
        f"--from={target}-build /opt/onestream /opt/onestream",
        f"--from={target}-build --chown=1000:1000 /var/cache/onestream /var/cache/onestream",
    ]
    # What the build compiled is in the cache that is read at run time.
    (built,) = [step for step in STAGES[f"{target}-build"].all("ENV") if step.startswith("NUMBA_CACHE_DIR=")]
    assert built in stage.last("ENV").split()
    assert built.startswith("NUMBA_CACHE_DIR=/var/cache/onestream/")
    # The socket of commands is in /tmp, where compose and the manifests mount a folder that can be written.
    (run_dir,) = re.findall(r"ONESTREAM_RUN_DIR=(\S+)", stage.last("ENV"))
    assert Path(run_dir).parent == Path("/tmp")


@cache
def context(root: Path = ROOT) -> set[str]:
    """Files that are sent to the build, by Docker's own reading of ``.dockerignore``."""
    from docker.utils.build import exclude_paths

    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    return set(exclude_paths(str(root), [line for line in lines if line and not line.startswith("#")]))


def test_pipelines_that_were_built_here_stay_out_as_their_networks_do(tmp_path: Path) -> None:
    for name in ("mine", "mine_fused", "classify_2", "classify_fused"):
        (tmp_path / "model_repository" / name).mkdir(parents=True)
        (tmp_path / "model_repository" / name / "config.pbtxt").touch()
    sent = {path for path in context(tmp_path) if path.endswith("config.pbtxt")}
    assert sent == {"model_repository/classify_fused/config.pbtxt"}


def test_the_build_gets_what_the_package_is_made_of_and_nothing_that_was_built() -> None:
    sent = context()
    include = re.search(r"^include = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    committed = (f"model_repository/{one}" for one in ("classify", "classify_fused", "classify_preprocess"))
    rooms = (*committed, "pipelines", *re.findall(r'"(\w+)\*"', include[1]))
    built = re.compile(r"(?!pipelines/networks/\w+\.onnx).*(\.onnx|\.plan|/__pycache__/.*|/certificate\.json)")
    files = {str(path.relative_to(ROOT)) for room in rooms for path in (ROOT / room).rglob("*") if path.is_file()}
    assert {path for path in files if not built.fullmatch(path)} | {"pyproject.toml", "README.md", "Makefile"} <= sent
    assert not [path for path in sent if built.fullmatch(path)]
    assert not [path for path in sent if path.startswith((".git", ".venv", "tests/"))]
