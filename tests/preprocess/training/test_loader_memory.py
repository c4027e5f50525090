"""Loaders that are opened and closed, epoch after epoch, give their memory back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EPOCHS = 40
SOAK = """
import sys
import psutil
from onestream.preprocess import CenterCrop, Decode, Definition, Normalize, Resize
from onestream.preprocess.training import ImageLoader

normalize = Normalize(mean=(0.5,) * 3, std=(0.5,) * 3)
operations = (Decode(), Resize(mode="shorter", size=256), CenterCrop(size=(224, 224)), normalize)
definition = Definition(operations=operations)
with ImageLoader(definition, sys.argv[1], batch_size=32, train=True, threads=1) as training:
    for _ in range(int(sys.argv[2])):
        assert sum(len(batch.images) for batch in training)
        with ImageLoader(definition, sys.argv[1], batch_size=32, threads=1) as validation:
            assert sum(len(batch.images) for batch in validation)
        print(psutil.Process().memory_info().rss / 2**20)
"""
"""In a process of its own: in this one, other tests' memory comes and goes."""


@pytest.mark.slow
def test_no_epoch_keeps_memory() -> None:
    command = [sys.executable, "-c", SOAK, str(ROOT / "examples" / "photos"), str(EPOCHS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    resident = [float(line) for line in done.stdout.split()]
    assert len(resident) == EPOCHS
    # A pipeline that is not freed costs 10 MiB or more an epoch. What is freed is used again after about ten epochs.
    assert resident[-1] - resident[11] < 28 * 5
