"""The commands that errors name: every extra and every dependency group in them is one of pyproject.toml."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from onestream.wire.install import install_command

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
ROOMS = ("benchmarks", "cli", "client", "measure", "onestream", "postprocess", "preprocess", "serving")


def test_a_command_holds_extras_a_group_and_the_pip_that_knows_groups() -> None:
    assert install_command("cpu", "ray") == "pip install -e '.[cpu,ray]' in onestream's checkout"
    of_both = "pip install -e '.[cpu]' --group bench in onestream's checkout (pip 25.1 or newer)"
    assert install_command("cpu", group="bench") == of_both


def test_errors_name_extras_and_groups_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    sources = [path.read_text(encoding="utf-8") for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    calls = {call for source in sources for call in re.findall(r"(?:install_command|needs_extras)\(([^*]*?)\)", source)}
    named = [ast.parse(f"f({call})", mode="eval").body for call in calls]
    extras = {ast.literal_eval(argument) for call in named for argument in call.args}
    groups = {ast.literal_eval(keyword.value) for call in named for keyword in call.keywords if keyword.arg == "group"}
    assert {"cpu", "gpu", "train"} <= extras <= set(project["project"]["optional-dependencies"])
    assert {"bench"} <= groups <= set(project["dependency-groups"])
