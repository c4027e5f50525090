"""``onestream demo``: what a newcomer sees first, in a folder with nothing built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.needs_triton
def test_a_photo_is_classified_and_its_objects_are_drawn(tmp_path: Path) -> None:
    for name in ("pipelines", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    photo = Path("examples/photos/coffee.jpg")
    command = [sys.executable, "-m", "onestream", "demo", "--photo", str(photo)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "espresso" in done.stdout
    assert "cup" in done.stdout
    assert "The objects drawn on coffee.jpg: runs/demo/detect.jpg" in done.stdout
    with Image.open(tmp_path / "runs/demo/detect.jpg") as drawn, Image.open(ROOT / photo) as before:
        assert drawn.size == before.size
        # Lines and names, but not the whole picture; JPEG alone changes few pixels by as much.
        changed = (np.abs(np.asarray(drawn, np.int16) - np.asarray(before, np.int16)).max(axis=2) > 60).mean()
    assert 0.01 < changed < 0.5
