"""What loaders draw of a sample is the same in every bit, in any shard, batch, thread or process, by either backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from box_sets import drawn_set, write_coco
from image_sets import DEFINITION, EVERYTHING
from mixing_sets import CROPPED, MIXED_BOXES, MIXED_CLASSES

from onestream.preprocess.collage import Collage
from onestream.preprocess.training import Augmentation, DetectionFiles, DetectionLoader, ImageLoader, read_coco
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


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> DetectionFiles:
    """17 pictures with 0 to 3 objects each."""
    folder = tmp_path_factory.mktemp("files")
    return read_coco(write_coco(folder, drawn_set(17)), images=folder / "photos")


@pytest.mark.parametrize(
    ("kind", "chain"),
    [
        ("classes", EVERYTHING),
        *(
            pytest.param(kind, chain, marks=pytest.mark.slow)
            for kind, chain in (("boxes", EVERYTHING), ("classes", MIXED_CLASSES), ("boxes", MIXED_BOXES))
        ),
    ],
    ids=["classes", "boxes", "mixed classes", "mixed boxes"],
)
def test_draws_are_equal_across_shards_batches_and_backends(
    tmp_path: Path, photos: Path, files: DetectionFiles, kind: str, chain: Augmentation
) -> None:
    """The reference draws in processes, DALI in threads."""

    def drawn(num_shards: int, **options: Any) -> dict[str, str]:
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        recorded = Recorded(chain.operations, folder=folder)
        for shard in range(num_shards):
            options = {**options, "train": True, "seed": 9, "num_shards": num_shards, "shard_id": shard}
            loader: Any = (
                ImageLoader(DEFINITION, photos, augmentation=recorded, **options)
                if kind == "classes"
                else DetectionLoader(CROPPED, files, augmentation=recorded, **options)
            )
            with loader:
                for _ in range(2):
                    assert sum(len(batch.indices) for batch in loader)
        return {path.name: path.read_text() for path in folder.iterdir()}

    first = drawn(1, backend="dali", batch_size=4, threads=1)
    count = 23 if kind == "classes" else 17
    assert sorted(first) == sorted(f"{epoch} {index}" for epoch in range(2) for index in range(count))
    assert len(set(first.values())) == 2 * count
    for backend in ("dali", "reference"):
        for num_shards, batch_size, threads in ((1, 7, 2), (2, 3, 1), (8, 2, 1)):
            again = drawn(num_shards, backend=backend, batch_size=batch_size, threads=threads)
            assert again == first, (backend, num_shards)


def test_pictures_depend_on_seed_epoch_and_sample_only(photos: Path) -> None:
    """By DALI: in shards 1, 2 and 8, and any batch and thread, each level is the same."""

    def epoch(number: int, **options: Any) -> dict[int, np.ndarray]:
        found = {}
        with ImageLoader(DEFINITION, photos, train=True, seed=9, augmentation=EVERYTHING, **options) as loader:
            loader.set_epoch(number)
            for batch in loader:
                found.update(zip(batch.indices.tolist(), batch.images.numpy(), strict=True))
        return found

    first = epoch(0, batch_size=4, threads=1)
    assert sorted(first) == list(range(23))
    others = [epoch(0, batch_size=9, threads=3, shuffle=False)]
    for shards in (2, 8):
        parts = [epoch(0, batch_size=2, shard_id=shard, num_shards=shards, threads=1) for shard in range(shards)]
        others.append({index: image for part in parts for index, image in part.items()})
    for other in others:
        assert sorted(index for index in other if index >= 0) == list(range(23))
        for index, image in first.items():
            np.testing.assert_array_equal(image, other[index])
    again = epoch(1, batch_size=4, threads=1)
    assert sum(np.array_equal(again[index], first[index]) for index in first) == 0
