"""Finds the part of the dataset that this process takes when several train together."""

from __future__ import annotations

import os

import torch.distributed


def this_shard(shard_id: int | None, num_shards: int | None) -> tuple[int, int]:
    """(shard_id, num_shards) as given, or else of ``torch.distributed``, of torchrun's environment, or (0, 1).

    Raises ``ValueError`` where only one is given, or the environment's are no numbers.
    """
    if (shard_id is None) != (num_shards is None):
        raise ValueError(f"give both shard_id and num_shards, or neither; got {shard_id} and {num_shards}")
    if shard_id is not None and num_shards is not None:
        return shard_id, num_shards
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, world_size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not (rank.isdigit() and world_size.isdigit()):
        raise ValueError(f"RANK and WORLD_SIZE in the environment must be numbers, got {rank!r} and {world_size!r}")
    return int(rank), int(world_size)
