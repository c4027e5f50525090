"""The locks: each satisfies pyproject.toml, is complete, and installs from any index without trusting it."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
UNHASHED = ("build.in", "dev.in", "cuda.txt", "torch.txt")
LOCKS = sorted(path.stem for path in (ROOT / "locks").glob("*.txt") if path.name not in UNHASHED)
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
EMBEDDED_PYTHONS = PYTHONS[:3]
SAME_FILES = {"onnxruntime-gpu": "onnxruntime", "nvidia-dali-cuda130": "nvidia-dali-cuda120"}
Pins = dict[str, Version]


@cache
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@cache
def text(lock: str) -> str:
    return (ROOT / "locks" / f"{lock}.txt").read_text(encoding="utf-8")


def command(lock: str) -> list[str]:
    """The command that wrote a lock, as its header says."""
    found = re.search(r"^#    (uv pip compile .*)$", text(lock), re.MULTILINE)
    return shlex.split(found[1])


def environment(python: str) -> dict[str, str]:
    return {**default_environment(), "python_version": python, "python_full_version": f"{python}.1", "extra": ""}


@cache
def pins(lines: str, python: str) -> Pins:
    """What the lines of a lock install on one version of Python."""
    found: Pins = {}
    for line in re.findall(r"^([a-z].*?)\s*\\?$", lines, re.MULTILINE):
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate(environment(python)):
            continue
        (pin,) = requirement.specifier
        assert pin.operator == "==", line
        name = canonicalize_name(requirement.name)
        assert name not in found, f"{name} twice for Python {python}"
        found[name] = Version(pin.version)
    return found


def named(lock: str, option: str) -> list[str]:
    """What a lock's command names after ``--extra`` or ``--group``."""
    return [value for before, value in itertools.pairwise(command(lock)) if before == option]


def asked_for(lock: str) -> list[str]:
    """Requirements of pyproject.toml that a lock is for: of the build, of the package, and of its extras and groups."""
    metadata = project()["project"]
    of_extras = [line for extra in named(lock, "--extra") for line in metadata["optional-dependencies"][extra]]
    of_groups = [line for group in named(lock, "--group") for line in project()["dependency-groups"][group]]
    assert of_extras or of_groups
    return [*project()["build-system"]["requires"], *metadata["dependencies"], *of_extras, *of_groups]


def unsatisfied(lines: list[str], locked: Pins, python: str) -> list[str]:
    """The requirements that what is locked does not satisfy."""
    requirements = [Requirement(line) for line in lines]
    needed = [one for one in requirements if one.marker is None or one.marker.evaluate(environment(python))]
    return [
        str(one)
        for one in needed
        if locked.get(canonicalize_name(one.name)) is None
        or not one.specifier.contains(locked[canonicalize_name(one.name)], prereleases=True)
    ]


def test_every_extra_and_every_group_is_in_a_lock() -> None:
    for option, defined in (
        ("--extra", project()["project"]["optional-dependencies"]),
        ("--group", project()["dependency-groups"]),
    ):
        assert {name for lock in LOCKS for name in named(lock, option)} == set(defined)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_satisfies_pyproject(lock: str) -> None:
    """``make lock`` mends it."""
    supported = SpecifierSet(project()["project"]["requires-python"])
    for python in PYTHONS:
        assert f"{python}.1" in supported
        locked = pins(text(lock), python) | pins(text("torch"), python)
        for package, replaced in SAME_FILES.items():
            if package in locked:
                assert replaced not in locked, "both hold the same files"
                locked[replaced] = locked[package]
        assert unsatisfied(asked_for(lock), locked, python) == [], python


@pytest.mark.parametrize("python", EMBEDDED_PYTHONS)
def test_what_serves_is_what_was_tested(python: str) -> None:
    """All locks but ``train`` agree, so that they can be installed over each other."""
    tested = pins(text("dev-gpu"), python) | pins(text("dev"), python)
    assert tested["numpy"] < Version("2") <= pins(text("train"), python)["numpy"]
    for lock in set(LOCKS) - {"train"}:
        differing = {name: pin for name, pin in pins(text(lock), python).items() if tested[name] != pin}
        assert differing == {}, lock


def test_a_machine_without_a_gpu_gets_no_cuda_of_pytorch_s() -> None:
    excluded = {line for line in (ROOT / "locks" / "cuda.txt").read_text().splitlines() if not line.startswith("#")}
    for lock in set(LOCKS) - {"dev-gpu", "gpu"}:
        assert not excluded & set(pins(text(lock), "3.11")), lock
    of_cuda_build = pins(text("dev-gpu"), "3.11")
    assert excluded <= set(of_cuda_build), "one that PyTorch does not ask for any more need not be named"
    for name, pin in pins(text("torch"), "3.11").items():
        assert of_cuda_build.get(name, pin) == pin


@pytest.mark.parametrize("lock", ["gpu", "dev-gpu"])
@pytest.mark.parametrize("python", PYTHONS)
def test_a_gpu_s_lock_runs_every_engine_and_is_for_cuda_13(lock: str, python: str) -> None:
    locked = pins(text(lock), python)
    runtime = "cu12" if python == "3.10" else "cu13"  # ONNX Runtime left Python 3.10 before it left CUDA 12
    assert {"onnxruntime-gpu", f"nvidia-cudnn-{runtime}", "nvidia-nvjpeg"} <= set(locked)
    assert (locked["onnxruntime-gpu"] >= Version("1.28")) == (runtime == "cu13")
    assert not {"cvcuda-cu12", "nvidia-dali-cuda120", "nvidia-nvimgcodec-cu12", "nvidia-nvjpeg-cu12"} & set(locked)


def test_cupti_s_bindings_stay_with_pytorch_s_cuda() -> None:
    """A newer one would ask the CUPTI that PyTorch brings for what it lacks."""
    brought = pins(text("dev-gpu"), "3.12")["nvidia-cuda-cupti"]
    lines = project()["dependency-groups"]["gpu-test"]
    (asked,) = [one for one in map(Requirement, lines) if one.name == "cupti-python"]
    assert asked.specifier.contains(f"{brought.major}.{brought.minor}.1")
    assert not asked.specifier.contains(f"{brought.major}.{brought.minor + 1}.0")


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_hashes_and_no_index_is_named(lock: str) -> None:
    for pinned in re.split(r"^(?=[a-z])", text(lock), flags=re.MULTILINE)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", pinned), pinned.splitlines()[0]
    without_hashes = re.sub(r"--hash=sha256:[0-9a-f]{64}", "", text(lock))
    assert "://" not in without_hashes
    assert not re.search(r"^\s*-", without_hashes, re.MULTILINE)
    assert not re.search(r"--(\S*index|find-links|trusted)", without_hashes)


def test_the_locks_are_written_by_the_makefile() -> None:
    planned = subprocess.run(
        ["make", "--dry-run", "lock"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    written = [
        shlex.split(re.sub(r"^.*/uv", "uv", line).replace(" --quiet", ""))
        for line in planned.replace("\\\n", " ").splitlines()
        if "uv pip compile" in line
    ]
    assert sorted(written) == sorted(command(lock) for lock in LOCKS)


def test_the_lock_of_the_tests_is_complete() -> None:
    """Nothing is resolved at an installation: whatever a locked package asks for is locked too."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    locked = pins(text("dev"), python) | pins(text("torch"), python)
    as_files_only = {one["name"] for one in project()["tool"]["uv"]["dependency-metadata"]}
    for name in set(locked) - as_files_only - {"torch"}:
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        assert unsatisfied(requires, locked, python) == [], name
