"""Batches on the training device: copied on a stream of their own and, on request, normalized there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch

from onestream.preprocess.definition import Definition

BatchT = TypeVar("BatchT", bound=tuple[Any, ...])
"""A named tuple whose first field are the images; the others are tensors, lists of tensors, or no tensors at all."""


def normalized(pixels: torch.Tensor, definition: Definition) -> torch.Tensor:
    """uint8 (batch, …, height, width, channels) to the definition's output, equal to the reference in every bit.

    Runs on the device of ``pixels``.
    """
    images, output, normalize = pixels, definition.network_input, definition.normalize
    if normalize is not None:
        # Tensors, not numbers: CUDA divides by a number as a product with its rounded inverse.
        scale, mean, std = (
            torch.tensor(value, dtype=torch.float32, device=pixels.device)
            for value in (normalize.scale, normalize.mean, normalize.std)
        )
        images = (images.to(torch.float32) / scale - mean) / std
    if output.layout == "NCHW":
        images = images.movedim(-1, -3)
    return images.to(getattr(torch, output.dtype)).contiguous()


class ToDevice(Generic[BatchT]):
    """Brings finished batches to ``device``; None leaves them where they are."""

    def __init__(self, definition: Definition, *, device: torch.device | str | None, normalize: bool) -> None:
        self._definition, self._normalize = definition, normalize
        self._device = torch.device(device) if device is not None else None
        on_cuda = self._device is not None and self._device.type == "cuda"
        if on_cuda and not torch.cuda.is_available():
            raise ValueError(f"batches cannot go to {str(device)!r}: PyTorch sees no CUDA device here")
        self._stream = torch.cuda.Stream(self._device) if on_cuda else None

    def ahead(self, batches: Iterator[BatchT]) -> Iterator[BatchT]:
        """The same batches on the device. On CUDA the next one is copied while the current one is used."""
        if self._stream is None:
            for batch in batches:
                yield self._moved(batch)
            return
        waiting: tuple[BatchT, torch.cuda.Event] | None = None
        for batch in batches:
            with torch.cuda.stream(self._stream):
                moved = self._moved(batch), self._stream.record_event()
            if waiting is not None:
                yield self._ready(*waiting)
            waiting = moved
        if waiting is not None:
            yield self._ready(*waiting)

    def _moved(self, batch: BatchT) -> BatchT:
        images, *others = batch
        if self._device is not None:
            images, *others = (_each(field, lambda one: one.to(self._device, non_blocking=True)) for field in batch)
        if self._normalize:
            images = normalized(images, self._definition)
        return type(batch)(images, *others)

    def _ready(self, batch: BatchT, copied: torch.cuda.Event) -> BatchT:
        """Make the consumer's stream wait for the copy, and keep the memory until it is done with it."""
        consumer = torch.cuda.current_stream(self._device)
        consumer.wait_event(copied)
        for field in batch:
            _each(field, lambda one: one.record_stream(consumer))
        return batch


def _each(field: Any, apply: Callable[[torch.Tensor], Any]) -> Any:
    """A batch's field with each of its tensors replaced by what ``apply`` makes of it."""
    if isinstance(field, torch.Tensor):
        return apply(field)
    return [_each(one, apply) for one in field] if isinstance(field, list) else field
