"""The photos of a folder again, in tar shards, Parquet files and tables of Hugging Face's library."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch

from onestream.preprocess.training import Files, ImageLoader


class Listed(torch.utils.data.Dataset[Any]):
    """A dataset of PyTorch as a project may have it."""

    classes: tuple[str, ...] = ()

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def tar_file(members: Iterable[tuple[str, bytes]], **options: Any) -> bytes:
    """A tar file with these members."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", **options) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return content.getvalue()


def shard_members(files: Files, indices: Iterable[int]) -> list[tuple[str, bytes]]:
    """What a shard of these samples holds, as WebDataset's writers name it."""
    members = []
    for index in indices:
        members.append((f"set/{index:04}{files.paths[index].suffix}", bytes(files.read(index))))
        members.append((f"set/{index:04}.cls", str(files.labels[index]).encode()))
    return members


def write_shards(folder: Path, files: Files, *, count: int) -> str:
    """Tar shards of the files, and the pattern that names them all."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, indices in enumerate(np.array_split(np.arange(len(files)), count)):
        (folder / f"train-{number:03}.tar").write_bytes(tar_file(shard_members(files, indices.tolist())))
    return f"{folder}/train-{{000..{count - 1:03}}}.tar"


def epochs_of(*given: Any, epochs: int = 1, **options: Any) -> list[tuple[torch.Tensor, ...]]:
    """All batches of so many epochs of an image loader."""
    with ImageLoader(*given, **options) as loader:
        return [tuple(batch) for _ in range(epochs) for batch in loader]


def assert_same(found: list[tuple[torch.Tensor, ...]], expected: list[tuple[torch.Tensor, ...]]) -> None:
    """Batches are equal in every bit, and there is one."""
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def write_parquet(
    path: Path, images: Sequence[bytes | None], labels: Sequence[Any], *, rows: int, classes: Sequence[str] = ()
) -> None:
    """A Parquet file as Hugging Face's library writes it, in groups of so many rows; with ``classes`` their names."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    records = [{"bytes": image, "path": f"{number}.jpg"} for number, image in enumerate(images)]
    features = {"image": {"_type": "Image"}, "label": {"names": list(classes), "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})} if classes else None
    written = pa.table({"image": pa.array(records, kind), "label": pa.array(labels)})
    parquet.write_table(written.replace_schema_metadata(metadata), path, row_group_size=rows)
