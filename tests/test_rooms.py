"""The rooms: imports go one way and never in a circle, and ``onestream`` is the only name in a user's environment."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import onestream
from onestream import preprocess
from onestream.preprocess.operations import Operation

ROOT = Path(__file__).parents[1]
ROOMS = ("wire", "preprocess", "postprocess", "pipelines", "serving", "client", "measure", "cli")
"""In the order of imports: a room imports those before it."""


def modules() -> dict[str, Path]:
    """Every module by its name."""
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    return {f"onestream.{name}": path for name, path in zip(names, paths, strict=True)}


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules that a file imports anywhere: at the top, within functions, and for its types only."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            while name and name not in known:
                name = name.rpartition(".")[0]
            if name:
                yield name


def test_folders_and_files_are_small() -> None:
    paths = modules().values()
    assert not {folder for folder, count in Counter(path.parent for path in paths).items() if count > 16}
    assert not [path for path in paths if len(path.read_text(encoding="utf-8").splitlines()) > 400]


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    known = modules()
    assert len(known) > 300
    return {name: set(imported(path, known)) - {name} for name, path in known.items()}


def check_no_circle(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_no_import_goes_in_a_circle(imports: dict[str, set[str]]) -> None:
    check_no_circle(imports)


def test_rooms_import_only_those_before_them(imports: dict[str, set[str]]) -> None:
    def room(name: str) -> int:
        return ROOMS.index(name.split(".")[1])

    backwards = [
        f"{name} imports {other}" for name, others in imports.items() for other in others if room(other) > room(name)
    ]
    assert backwards == []


@pytest.mark.parametrize("room", ["preprocess", "serving"])
def test_folders_of_a_room_do_not_import_each_other(imports: dict[str, set[str]], room: str) -> None:
    def folder(name: str) -> str | None:
        """The folder of the room that a module lies in; None for one beside the folders, or of another room."""
        parts = name.split(".")[1:]
        return parts[1] if parts[0] == room and len(parts) > 1 and (ROOT / room / parts[1]).is_dir() else None

    layers: dict[str, set[str]] = {}
    for name, others in imports.items():
        if (own := folder(name)) is not None:
            layers.setdefault(own, set()).update({folder(other) for other in others} - {own, None})
    assert len(layers) > 3
    check_no_circle(layers)


def test_the_client_imports_nothing_but_the_wire(imports: dict[str, set[str]]) -> None:
    reached = set().union(*(others for name, others in imports.items() if name.startswith("onestream.client")))
    assert {name.split(".")[1] for name in reached} == {"client", "wire"}


def test_nobody_else_imports_what_is_private_to_the_client(imports: dict[str, set[str]]) -> None:
    reached = {name: others for name, others in imports.items() if not name.startswith("onestream.client")}
    known = modules()
    reached.update({str(path): set(imported(path, known)) for path in (ROOT / "benchmarks").rglob("*.py")})
    private = [f"{name} imports {other}" for name, others in reached.items() for other in others if "client._" in other]
    assert private == []


def test_measure_and_cli_stay_out_of_the_inside_of_serving(imports: dict[str, set[str]]) -> None:
    inside = [
        f"{name} imports {other}"
        for name, others in imports.items()
        for other in others
        if name.split(".")[1] in ("measure", "cli")
        and other.startswith(("onestream.serving.graph", "onestream.serving.video"))
    ]
    assert inside == []


def test_the_package_shows_what_it_has() -> None:
    for name in onestream.__all__:
        assert getattr(onestream, name).__name__ == name
        assert name in dir(onestream)
    public = {name: getattr(preprocess, name) for name in preprocess.__all__}
    operations = {name for name, one in public.items() if isinstance(one, type) and issubclass(one, Operation)}
    assert operations - set(onestream.__all__) == {"Region"}


def named_elsewhere(path: Path, helpers: dict[str, Path], told: set[Path]) -> set[str]:
    """Helpers of other folders that a file seems to import, perhaps only in the text of a program."""
    seen = set(re.findall(r"^ *(?:from|import) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    return {name for name in seen & helpers.keys() if helpers[name].parent not in {path.parent, *told}}


def test_tests_find_their_helpers_when_their_folder_runs_alone(pytestconfig: pytest.Config) -> None:
    """In their own folder, or in one that pytest is told of: what another folder's conftest adds is not there then."""
    files = list((ROOT / "tests").rglob("*.py"))
    helpers = {path.stem: path for path in files if not path.stem.startswith("test_") and path.stem != "conftest"}
    told = {ROOT / folder for folder in pytestconfig.getini("pythonpath")}
    elsewhere = {path: named_elsewhere(path, helpers, told) for path in files}
    missed = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path, names in elsewhere.items()
        if names
        for name in names & set(imported(path, helpers))
    ]
    assert missed == []


@pytest.mark.slow
def test_the_wheel_needs_no_name_but_onestream(tmp_path: Path) -> None:
    """In a fresh environment, beside a user's own files with the names of our rooms."""
    wheels, environment, mine = tmp_path / "wheels", tmp_path / "environment", tmp_path / "mine"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "-w", wheels, ROOT], check=True)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"onestream"}
    assert {f"onestream/{room}/__init__.py" for room in ROOMS} <= set(names)
    assert "onestream/serving/data/imagenet_labels.txt" in names
    assert "onestream/pipelines/networks/selfie_segmentation.onnx" in names
    assert "onestream/serving/proxy/nginx_template.conf" in names
    assert "onestream/cli/demo_page/static/page.html" in names
    assert "onestream/cli/gateway/static/openapi.yaml" in names

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    target = next((environment / "lib").glob("python*")) / "site-packages"
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--target", target, wheel], check=True)
    # What it depends on is this environment's, without this checkout.
    dependencies = next(path for path in map(Path, sys.path) if (path / "numpy").is_dir())
    (target / "dependencies.pth").write_text(f"{dependencies}\n")
    mine.mkdir()
    (mine / "preprocess.py").write_text("mine = True\n")
    for folder in ("client", "serving", "wire", "measure", "cli"):
        (mine / folder).mkdir()
        (mine / folder / "__init__.py").write_text("mine = True\n")
    (mine / "train.py").write_text(
        "import client, cli, measure, onestream, preprocess, serving, wire\n"
        "from onestream import Client, Definition, compile\n"
        "from onestream.serving.building.build import build\n"
        "assert all(one.mine for one in (client, cli, measure, preprocess, serving, wire))\n"
        "print(onestream.__file__, Definition.from_yaml('operations: [{op: decode}]').output_spec.dtype)\n"
    )
    done = subprocess.run([environment / "bin" / "python", "train.py"], cwd=mine, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{target}/onestream/__init__.py float32\n"
