"""What the parts of a hostile run found, as a file in which each part keeps its own date and commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.results import Machine

FILE_NAME = "hostile.json"


def read(folder: Path) -> list[dict[str, Any]]:
    """All results below a folder, by path."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"*/{FILE_NAME}"))]


def keep(path: Path, part: str, found: dict[str, Any], *, machine: Machine) -> dict[str, Any]:
    """Write what a part found into a file, and return all that the file then has; other parts stay as they are."""
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"parts": {}}
    results["machine"] = machine.model_dump()
    results["parts"][part] = found
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    return results
