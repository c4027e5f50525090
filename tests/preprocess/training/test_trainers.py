"""Loaders in what people train with, unchanged: PyTorch's datasets, Lightning and Accelerate."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from image_sets import DEFINITION
from stored_sets import Listed

from onestream.preprocess import BadDataset
from onestream.preprocess.interop import libraries
from onestream.preprocess.training import Files, ImageLoader

OPTIONS: dict[str, Any] = {"batch_size": 2, "train": True, "seed": 3, "threads": 1}
KILLED_AFTER = 2
"""Batches of the second epoch."""


def batches(loader: ImageLoader) -> list[tuple[list[int], list[int], float]]:
    return [(one.indices.tolist(), one.labels.tolist(), float(one.images.sum())) for one in loader]


@pytest.mark.parametrize("backend", ["dali", "reference"])
@pytest.mark.parametrize("read", [str, Path.read_bytes], ids=["paths", "bytes"])
def test_a_dataset_of_pytorch_is_a_source(photos: Path, read: Any, backend: Any) -> None:
    files = Files.from_folder(photos)
    dataset = Listed([(read(path), label) for path, label in zip(files.paths, files.labels, strict=True)])
    with ImageLoader(DEFINITION, photos, backend=backend, **OPTIONS) as loader:
        expected = batches(loader)
    dataset.classes = ("cat", "dog")
    with ImageLoader(DEFINITION, dataset, backend=backend, **OPTIONS) as loader:
        assert loader.classes == ("cat", "dog")
        assert (len(loader.dataset), loader.batch_size) == (len(files), 2)
        assert batches(loader) == expected


def model_class(lightning: Any) -> Any:
    """A small network that notes the indices of its batches in ``seen``, and may be killed in the second epoch."""

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self, killed_after: int | None = None) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: list[list[int]] = []
            self._killed_after = killed_after

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            if self.current_epoch == 1 and number == self._killed_after:
                raise KeyboardInterrupt
            self.seen.append(batch.indices.tolist())
            return self.layer(batch.images.float().mean().reshape(1)).sum()

        def validation_step(self, batch: Any, number: int) -> None:
            pass

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    return Model


QUIET: dict[str, Any] = {
    "max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False,
}  # fmt: skip


def test_items_that_are_no_pictures_with_labels_are_named() -> None:
    for item, message in (
        ((torch.zeros(3, 8, 8), 1), r"item 0 of Listed is Tensor; expected \(bytes, label\) or \(path, label\)"),
        (b"picture", r"item 0 of Listed is bytes; expected \(bytes, label\).* without a transform"),
    ):
        with ImageLoader(DEFINITION, Listed([item]), batch_size=1) as loader, pytest.raises(BadDataset, match=message):
            list(loader)


def test_lightning_goes_on_within_an_epoch(photos: Path, tmp_path: Path) -> None:
    # It imports torchvision, which needs not be built for this PyTorch.
    libraries.load("torchvision")
    lightning = pytest.importorskip("lightning.pytorch", reason="no lightning: pip install --group dev")

    Model = model_class(lightning)  # noqa: N806

    def fitted(model: Any, **options: Any) -> list[list[int]]:
        saving = lightning.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=1, filename="last")
        trainer = lightning.Trainer(**{**QUIET, **options}, callbacks=[saving])
        last = tmp_path / "last.ckpt"
        with (
            ImageLoader(DEFINITION, photos, **OPTIONS) as loader,
            ImageLoader(DEFINITION, photos, batch_size=2, threads=1) as validation,
        ):
            trainer.fit(model, loader, validation, ckpt_path=last if last.exists() else None)
        seen: list[list[int]] = model.seen
        return seen

    with ImageLoader(DEFINITION, photos, **OPTIONS) as loader:
        epochs = [[batch.indices.tolist() for batch in loader] for _ in range(2)]
    # Of each epoch a part, and a run that begins with the second.
    assert fitted(Model(), max_epochs=1, limit_train_batches=1) == epochs[0][:1]
    assert fitted(Model(), limit_train_batches=1) == epochs[1][:1]
    (tmp_path / "last.ckpt").unlink()
    whole = fitted(Model())
    assert whole == epochs[0] + epochs[1]
    (tmp_path / "last.ckpt").unlink()
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit):
        fitted(killed := Model(KILLED_AFTER))
    # Lightning lets it be ignored.
    signal.signal(signal.SIGINT, before)
    assert killed.seen == whole[: len(whole) // 2 + KILLED_AFTER]
    assert fitted(Model()) == whole[len(killed.seen) :]


def test_accelerate_keeps_where_a_loader_is(photos: Path, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="no accelerate: pip install --group dev")
    accelerator = accelerate.Accelerator(cpu=True)
    with ImageLoader(DEFINITION, photos, **OPTIONS) as loader:
        accelerator.register_for_checkpointing(loader)
        list(loader)
        begun = [one.indices.tolist() for _, one in zip(range(KILLED_AFTER), loader, strict=False)]
        accelerator.save_state(str(tmp_path))
        loader.set_epoch(1)
        whole = [one.indices.tolist() for one in loader]
        assert begun == whole[:KILLED_AFTER]
        accelerator.load_state(str(tmp_path))
        assert [one.indices.tolist() for one in loader] == whole[KILLED_AFTER:]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_lightning_overfits_batches_of_a_loader_that_does_not_shuffle(photos: Path) -> None:
    libraries.load("torchvision")
    lightning = pytest.importorskip("lightning.pytorch", reason="no lightning: pip install --group dev")
    model = model_class(lightning)()

    def fit(**options: Any) -> None:
        trainer = lightning.Trainer(**QUIET, overfit_batches=2, enable_checkpointing=False)
        with ImageLoader(DEFINITION, photos, batch_size=2, threads=1, train=True, **options) as loader:
            trainer.fit(model, loader)

    fit(shuffle=False)
    assert model.seen == [[0, 1], [2, 3]] * 2
    with pytest.raises(ValueError, match=r"ImageLoader.* needs to subclass `torch.utils.data.DataLoader`"):
        fit(shuffle=True)
