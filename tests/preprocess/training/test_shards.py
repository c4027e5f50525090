"""Several real processes train on shards of one dataset."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from image_sets import DEFINITION

from onestream.preprocess.training import Augmentation, Batch, ImageLoader
from onestream.preprocess.training.order import this_shard

ROOT = Path(__file__).parents[3]

RANK = """
    import json, sys
    import torch.distributed as dist
    from test_shards import epochs_of

    dist.init_process_group("gloo")
    epochs = epochs_of(sys.argv[1])
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, epochs)
    if dist.get_rank() == 0:
        print(json.dumps(everyone))
    dist.destroy_process_group()
"""


def epochs_of(photos: str) -> list[list[list[tuple[int, int, str]]]]:
    """Index, label and digest of the varied pixels of each sample that this process sees, by epoch and batch."""
    varied = Augmentation(brightness=0.4, hue=0.1)
    with ImageLoader(DEFINITION, photos, batch_size=2, train=True, seed=5, threads=1, augmentation=varied) as loader:
        return [[samples(batch) for batch in loader] for _ in range(3)]


def samples(batch: Batch) -> list[tuple[int, int, str]]:
    digests = [hashlib.sha256(image.numpy().tobytes()).hexdigest() for image in batch.images]
    return list(zip(batch.indices.tolist(), batch.labels.tolist(), digests, strict=True))


def torchrun(processes: int, *arguments: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    # The folders that pytest adds to the path are those where this module finds its helpers.
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_three_processes_share_every_epoch_of_one(photos: Path, tmp_path: Path) -> None:
    """In equal numbers of batches, in another order each time; the samples are those that one process sees."""
    (tmp_path / "rank.py").write_text(textwrap.dedent(RANK))
    everyone = json.loads(torchrun(3, str(tmp_path / "rank.py"), str(photos)))
    assert len(everyone) == 3
    orders = []
    for epoch, alone in enumerate(epochs_of(str(photos))):
        batches = [rank[epoch] for rank in everyone]
        assert {len(of_rank) for of_rank in batches} == {2}
        shared = [tuple(sample) for of_rank in batches for batch in of_rank for sample in batch]
        assert len(shared) == 12
        assert sorted(shared) == sorted(sample for batch in alone for sample in batch)
        orders.append([index for index, _, _ in shared])
    assert orders[0] != orders[1] != orders[2]


def test_a_shard_is_given_or_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert this_shard(None, None) == (0, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "5")
    assert this_shard(None, None) == (2, 5)
    assert this_shard(1, 3) == (1, 3)
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ValueError, match="RANK and WORLD_SIZE in the environment must be numbers, got 'first'"):
        this_shard(None, None)
