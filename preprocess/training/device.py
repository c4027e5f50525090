"""Batches on the training device: copied on a stream of their own and, on request, normalized there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, Literal, TypeVar

import torch

from onestream.preprocess.definition import Definition

BatchT = TypeVar("BatchT", bound=tuple[Any, ...])
"""A named tuple whose first field are the images; the others are tensors, lists of tensors, or no tensors at all."""


FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class ToDevice(Generic[BatchT]):
    """Makes the definition's output of what the workers made, on ``device``; None leaves batches where they are.

    ``made`` is the definition that workers run: ``definition`` up to its uint8 pixels with ``normalize`` *torch*, and
    with channels last where ``memory_format`` is so, which then costs nothing. ``dtype`` is what the images are rounded
    to at the end. Raises ``ValueError``.
    """

    def __init__(
        self,
        definition: Definition,
        *,
        device: torch.device | str | None,
        normalize: Literal["backend", "torch"] = "backend",
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        if dtype not in (None, *FLOATS):
            raise ValueError(f"dtype must be one of {', '.join(map(str, FLOATS))}, got {dtype}")
        if memory_format not in (torch.contiguous_format, torch.channels_last):
            raise ValueError(
                f"memory_format must be torch.contiguous_format or torch.channels_last, got {memory_format}"
            )
        self._channels_last, output = memory_format == torch.channels_last, definition.network_input
        if self._channels_last and output.layout == "NHWC":
            raise ValueError("memory_format torch.channels_last needs a definition whose output has the layout NCHW")
        self._output, self._dtype = output, dtype
        self._normalize = definition.normalize if normalize == "torch" else None
        self.made = definition.pixels() if normalize == "torch" else definition
        if self._channels_last:
            self.made = self.made.with_layout("NHWC")
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
        return type(batch)(self._finished(images), *others)

    def _finished(self, images: torch.Tensor) -> torch.Tensor:
        """The definition's output, equal to the reference in every bit before it is rounded to another type."""
        if self._normalize is not None:
            # Tensors, not numbers: CUDA divides by a number as a product with its rounded inverse.
            images = images.to(torch.float32)
            for name, values in self._normalize.steps:
                number = torch.from_numpy(values).to(images.device)
                images = images - number if name == "mean" else images / number
        images = images.to(getattr(torch, self._output.dtype))
        if self.made.network_input.layout != self._output.layout:
            images = images.movedim(-1, -3)
        # A view has the strides of channels last.
        images = images if self._channels_last else images.contiguous()
        return images if self._dtype is None else images.to(self._dtype)

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
