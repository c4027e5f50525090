"""Map-style datasets for an ordinary ``DataLoader``, and a transform for pictures at hand, by the same definition."""

from __future__ import annotations

import operator
import os
import threading
from abc import abstractmethod
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import torch.utils.data
from PIL import Image

from onestream.preprocess.backends.base import REFERENCE, CpuBackendName
from onestream.preprocess.backends.reference import to_8_bit
from onestream.preprocess.backends.table import backend_named
from onestream.preprocess.compile import compile, compile_from_picture
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage, BadSample, CannotCompile
from onestream.preprocess.headers.reader import Encoded
from onestream.preprocess.limits import Limits
from onestream.preprocess.operations import Decode
from onestream.preprocess.training.augmentation import Augmentation
from onestream.preprocess.training.base_loader import Batch, check_options
from onestream.preprocess.training.order import Slot
from onestream.preprocess.training.pictures import BatchT, ImageKind, PictureKind, SourceT
from onestream.preprocess.training.sources.cache import Cache
from onestream.preprocess.training.sources.opening import Source
from onestream.preprocess.training.workers import Maker

ItemT = TypeVar("ItemT")


class PictureDataset(
    PictureKind[BatchT, SourceT],
    torch.utils.data.Dataset[ItemT],  # type: ignore[misc]
    Generic[BatchT, SourceT, ItemT],
):
    """A map-style dataset: ``dataset[i]`` is the sample ``i`` as the loader of the same kind makes it, in every bit.

    ``source``: as of the loader. ``augmentation``: how images vary, as of a loader with ``train=True``; None is exactly
    what serving runs. What is drawn depends on ``seed``, on the epoch and on the index: call ``set_epoch`` before each
    epoch, since a dataset is not told when one begins.

    ``backend``: *reference* (default) is Pillow, for which a ``DataLoader`` has processes. *dali* is for
    ``num_workers=0`` and for ``multiprocessing_context="spawn"``: its threads do not survive a fork.

    ``cache``: keeps decoded or resized pictures on disk, see ``Cache``; samples stay equal in every bit.

    ``dataset[i]`` raises ``BadSample`` naming a file that cannot be used, and ``IndexError``. The dataset raises
    ``BadDataset``, ``CannotCompile``, or ``ValueError`` for an option out of range.
    """

    def __init__(
        self,
        definition: Definition,
        source: SourceT,
        augmentation: Augmentation | None = None,
        *,
        seed: int = 0,
        backend: CpuBackendName = REFERENCE,
        cache: Cache | None = None,
        limits: Limits | None = None,
    ) -> None:
        check_options(normalize="backend", bad_files="fail", seed=seed)
        self._config = self._configure(
            definition,
            source,
            varies=augmentation is not None,
            augmentation=augmentation,
            seed=seed,
            backend=backend,
            device="cpu",
            limits=limits,
            batch_size=1,
            made=definition,
            pin_memory=False,
            bad_files="fail",
            cache=cache,
        )
        self._config.maker(1, 1).close()
        # Shared with worker processes, which may outlive an epoch.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._begin()

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes 0, 1, …; empty where the source gives none."""
        return tuple(self._config.samples.classes)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose augmentation is drawn, also in worker processes that are running."""
        if epoch < 0:
            raise ValueError(f"epoch must be 0 or more, got {epoch}")
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._config.samples)

    def __getitem__(self, index: int) -> ItemT:
        """The sample at ``index``, 0 to ``len(self) - 1``."""
        index = operator.index(index)
        if not 0 <= index < len(self):
            raise IndexError(f"index must be from 0 to {len(self) - 1}, got {index}")
        slot = Slot(index)
        made = self._maker().make([slot], int(self._epoch))
        (sample,) = made.samples
        if isinstance(sample, BadImage | BadSample):
            raise BadSample(f"{self._config.samples.name(index)}: {sample}")
        samples = torch.from_numpy(np.array(sample[None]))
        return self._item(self._batch(samples, [slot], [made.seen.get(0, ())]), index)

    @abstractmethod
    def _item(self, batch: BatchT, index: int) -> ItemT:
        """The item of a batch of one."""

    def _maker(self) -> Maker:
        """That of this thread."""
        if os.getpid() != self._pid and not backend_named(self._config.backend).holds_interpreter:
            raise CannotCompile(
                f"{self._config.backend} cannot run in a forked process; use "
                "DataLoader(…, multiprocessing_context='spawn'), num_workers=0, or backend='reference'"
            )
        maker: Maker | None = getattr(self._local, "maker", None)
        if maker is None:
            maker = self._local.maker = self._config.maker(1, 1)
        return maker

    def _begin(self) -> None:
        self._pid, self._local = os.getpid(), threading.local()

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_pid", "_local")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In another process."""
        self.__dict__.update(state)
        # That of a copy is not shared with the workers that it will have.
        self._epoch.share_memory_()
        self._begin()


class Dataset(ImageKind, PictureDataset[Batch, Source, tuple[torch.Tensor, torch.Tensor]]):
    """A map-style dataset of (image, label); see ``PictureDataset`` for the options and ``ImageKind`` for labels."""

    def _item(self, batch: Batch, index: int) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ARG002
        return batch.images[0], batch.labels[0]


class Transform:
    """A callable for pictures at hand: gives the network's input of one, as ``definition.output_spec`` says.

    It takes encoded bytes, a path, a ``PIL.Image.Image``, which is turned by its EXIF orientation as decoding does, or
    uint8 (height, width, 3) RGB. ``augmentation``: how images vary; draws follow ``torch.manual_seed``, as those of
    torchvision's transforms. It crosses processes; the backend is the reference.

    Raises ``BadImage`` for a picture that is refused, ``ValueError`` for an array of another shape or dtype,
    ``TypeError`` for anything else, and ``CannotCompile`` where it is made.
    """

    def __init__(
        self, definition: Definition, augmentation: Augmentation | None = None, *, limits: Limits | None = None
    ) -> None:
        self.definition = definition
        self._augmentation = augmentation and augmentation.check("classes")
        if augmentation is not None and augmentation.mixes:
            raise CannotCompile("a transform gets one picture; operations that mix samples need a loader or Dataset")
        self._encoded = compile(definition, limits=limits, varied=augmentation is not None)
        self._picture = compile_from_picture(definition, limits=limits)

    def __call__(self, picture: Encoded | str | os.PathLike[str] | Image.Image) -> torch.Tensor:
        """The network's input."""
        varies = None
        if self._augmentation is not None:
            seed = int(torch.randint(2**63 - 1, ()))
            varies = [partial(self._augmentation.draw, seed=seed, epoch=0, index=0, definition=self.definition)]
        if isinstance(picture, str | os.PathLike):
            picture = Path(picture).read_bytes()
        if isinstance(picture, Image.Image):
            picture = np.asarray(self._upright(picture))
        if isinstance(picture, np.ndarray) and picture.ndim != 1:
            return torch.from_numpy(self._picture.run(picture, None, varies))
        if not isinstance(picture, bytes | bytearray | memoryview | np.ndarray):
            raise TypeError(f"got {type(picture).__name__}; expected bytes, a path, a PIL image or an array")
        (sample,) = self._encoded.run([picture], varies)
        if isinstance(sample, BadImage):
            raise sample
        return torch.from_numpy(sample)

    def _upright(self, picture: Image.Image) -> Image.Image:
        source = self.definition.source
        assert isinstance(source, Decode)
        return to_8_bit(picture.copy(), source.model_copy(update={"color": "rgb"}), picture.info.get("icc_profile"))
