"""The stubs in ``typings`` say what the installed libraries have. None of these needs a GPU to be imported."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TYPINGS = ROOT / "typings"
MODULES = ("cuda.bindings.driver", "cuda.core", "nvidia.nvimgcodec", "tensorrt_rtx")
# What mypy cannot see in a compiled module, or a stub says on purpose.
HARMLESS = (
    "metaclass differs",  # every class of pybind11 has pybind11_type
    r"tensorrt_rtx\.Dims\.__iter__ is not present",  # iterated by __getitem__, which type checkers do not accept
    r"tensorrt_rtx\.IHostMemory\.__buffer__ is not present",  # the buffer protocol has no name before Python 3.12
)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stubs generated now, from what is installed."""
    folder = tmp_path_factory.mktemp("stubs")
    environment = {**os.environ, "PYTHONPATH": str(TYPINGS)}
    subprocess.run([sys.executable, "-m", "make_stubs", str(folder)], cwd=ROOT, env=environment, check=True)
    return folder


def signatures(path: Path) -> set[str]:
    """Every definition of a stub, as *Class.member: signature*."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}: {ast.unparse(member)}" for member in node.body}
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            found.add(ast.unparse(node))
    return found


def generated() -> list[str]:
    """The stubs that are generated: they say so."""
    return sorted(
        str(path.relative_to(TYPINGS))
        for path in TYPINGS.rglob("*.pyi")
        if "by `make stubs`" in " ".join(path.read_text().splitlines()[:2])
    )


def test_generated_stubs_are_found() -> None:
    assert {Path(name).parts[0] for name in generated()} == {"cuda", "nvidia", "tensorrt", "tensorrt_rtx"}


@pytest.mark.parametrize("name", generated())
def test_the_libraries_still_have_what_the_stubs_say(fresh: Path, name: str) -> None:
    """Another version may add things; what it changed or took away is wrong here, and `make stubs` shows it."""
    gone = signatures(TYPINGS / name) - signatures(fresh / name)
    assert not gone, f"{name} promises what the installed library does not have; run `make stubs`"


def test_stubtest_finds_nothing() -> None:
    """mypy's own comparison of stubs with modules, by names, kinds and, where a module tells them, arguments."""
    command = [sys.executable, "-m", "mypy.stubtest", "--concise", "--ignore-missing-stub", "--ignore-disjoint-bases"]
    command += ["--mypy-config-file", str(ROOT / "pyproject.toml"), *MODULES]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [line for line in result.stdout.splitlines() if not re.search("|".join(HARMLESS), line)]
    assert lines == [], result.stderr
    # Without its known remarks it did not compare at all.
    assert "metaclass differs" in result.stdout, result.stderr


def test_no_stub_says_any() -> None:
    for path in TYPINGS.rglob("*.pyi"):
        used = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        assert not used & {"Any", "Incomplete"}, path
