"""A folder of real photos in several formats and sizes, as a training set."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_sets import write_photos


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 images in three classes."""
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder, count=12)
    return folder
