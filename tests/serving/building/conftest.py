"""A network in float32 and in int8, built once."""

from __future__ import annotations

from pathlib import Path

import pytest
from int8_networks import in_both

from onestream.serving.building.build import Built


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Built]:
    """Repositories of the same pipeline in float32 and in int8, which no test changes."""
    return in_both(tmp_path_factory.mktemp("both"))
