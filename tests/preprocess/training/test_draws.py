"""What loaders draw of a sample is the same in every bit, in any shard, batch, thread or process, by either backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import pytest
from loader_kinds import COUNT, KINDS, Kind

from onestream.preprocess.collage import Collage
from onestream.preprocess.training import Augmentation
from onestream.preprocess.variation import Variation

_Drawn = TypeVar("_Drawn", Variation, Collage)


class Recorded(Augmentation):
    """Writes what it draws into a folder, a file for each sample, from any thread or process."""

    folder: Path

    def draw(self, *what: Any, **which: Any) -> Variation:
        return self._recorded(super().draw(*what, **which), **which)

    def collage(self, *what: Any, **which: Any) -> Collage:
        return self._recorded(super().collage(*what, **which), **which)

    def _recorded(self, drawn: _Drawn, *, epoch: int, index: int, **_: Any) -> _Drawn:
        # JSON has the shortest decimal number of each float, from which every bit comes back.
        (self.folder / f"{epoch} {index}").write_text(drawn.model_dump_json())
        return drawn


@pytest.mark.parametrize("kind", KINDS[:4], ids=str)
def test_draws_are_equal_across_shards_batches_and_backends(tmp_path: Path, kind: Kind) -> None:
    """The reference draws in processes, DALI in threads."""
    source, _ = kind.write(tmp_path / "data")

    def drawn(name: str, shards: int, **options: Any) -> dict[str, str]:
        folder = tmp_path / name
        folder.mkdir()
        recorded = Recorded(kind.chain.operations, folder=folder)
        for shard in range(shards):
            with kind.open(source, chain=recorded, shard_id=shard, num_shards=shards, **options) as loader:
                for _ in range(2):
                    assert sum(len(batch.indices) for batch in loader)
        return {path.name: path.read_text() for path in folder.iterdir()}

    first = drawn("first", 1, backend="dali", batch_size=4, threads=1)
    assert sorted(first) == sorted(f"{epoch} {index}" for epoch in range(2) for index in range(COUNT))
    assert len(set(first.values())) == 2 * COUNT
    assert drawn("shards", 8, backend="dali", batch_size=2, threads=1, shuffle=True) == first
    assert drawn("processes", 2, backend="reference", batch_size=3, threads=2, last_batch="pad") == first
