"""Compiles every loop of the product once, before many processes need them at the same moment.

Numba keeps them beside the modules, or in NUMBA_CACHE_DIR. ``make build`` and ``make test`` run this; where all is
compiled it takes a second.
"""

from __future__ import annotations

import importlib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("preprocess", "postprocess", "serving")


def modules() -> list[str]:
    """The modules that compile loops when they are imported."""
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return [
        ".".join(("onestream", *path.relative_to(ROOT).with_suffix("").parts))
        for path in paths
        if "cpu.loops import compiled" in path.read_text(encoding="utf-8")
    ]


if __name__ == "__main__":
    for name in modules():
        importlib.import_module(name)
