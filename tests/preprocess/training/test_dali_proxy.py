"""An existing dataset and its worker processes, with only preprocessing moved to DALI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_sets import DEFINITION
from torch.utils.data import Dataset

from onestream.preprocess import CannotCompile, Definition, compile
from onestream.preprocess.tolerances import compare
from onestream.preprocess.training import Files
from onestream.preprocess.training.proxy import DaliProxy

pytestmark = pytest.mark.slow


class MyDataset(Dataset[Any]):
    """What a user has: files, labels and a transform."""

    def __init__(self, files: Files, transform: Any) -> None:
        self.files, self.transform = files, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self.files.paths[index]), self.files.label(index)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dataset_keeps_its_code(photos: Path, workers: int) -> None:
    files = Files.from_folder(photos)
    expected = compile(DEFINITION).run([files.read(index) for index in range(len(files))])
    with DaliProxy(DEFINITION, batch_size=5) as proxy:
        loader = proxy.loader(MyDataset(files, proxy.transform), num_workers=workers)
        batches = [(images.clone(), labels.tolist()) for images, labels in loader]
    assert [len(images) for images, _ in batches] == [5, 5, 2]
    assert [label for _, labels in batches for label in labels] == list(files.labels)
    seen = [image for images, _ in batches for image in images.numpy()]
    for image, right in zip(seen, expected, strict=True):
        assert isinstance(right, np.ndarray)
        # The graph repeats border pixels where Pillow renormalizes; the crop leaves most of the border out.
        comparison = compare(right, image, definition=DEFINITION, stage="normalize", backend="dali")
        assert comparison.share_above_one < 0.01
        assert comparison.mean < 0.5


def test_a_bad_file_is_named_by_the_worker(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("no image")
    files = Files([*Files.from_folder(photos).paths[:2], tmp_path / "text.jpg"], [0, 0, 0])
    with (
        DaliProxy(DEFINITION, batch_size=2) as proxy,
        pytest.raises(Exception, match=r"unsupported_format.*got text"),
    ):
        list(proxy.loader(MyDataset(files, proxy.transform)))


def test_what_the_graph_cannot_do_is_refused() -> None:
    operations = [
        op if op.op != "resize" else op.model_copy(update={"filter": "bicubic"}) for op in DEFINITION.operations
    ]
    with pytest.raises(CannotCompile, match="bicubic"):
        DaliProxy(Definition(operations=operations), batch_size=2)
    with pytest.raises(CannotCompile, match="depends on the image"):
        DaliProxy(DEFINITION.stage("resize"), batch_size=2)
    with DaliProxy(DEFINITION, batch_size=2) as proxy, pytest.raises(ValueError, match="num_workers of at least 1"):
        proxy.loader(MyDataset(Files([], []), None), num_workers=0)
