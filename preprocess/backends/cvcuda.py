"""The definition on one CUDA stream, after nvImageCodec decoded on the same stream.

Every image's window goes from its decoded pixels straight to its place in the batch by one resize, so nothing is
resized that a crop drops and no crop or stack follows. The resize is ours, and Pillow's in every bit
(``cuda/resize.py``); CV-CUDA's own, ``hq_resize``, is an option. Normalization, layout and dtype are one kernel more,
which looks the reference's values up; a served pipeline leaves them to the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol, cast

import numpy as np

from onestream.preprocess.backends.base import (
    CompiledOnStream,
    DecodeOptions,
    GpuResize,
    Queued,
    Sample,
    level_fill,
    level_table,
    refuse_inexact,
    refuse_reduced,
)
from onestream.preprocess.backends.batches import Planned, groups, plan_batch
from onestream.preprocess.backends.nvimgcodec import ImageDecoder
from onestream.preprocess.changes import AnyChange
from onestream.preprocess.cuda.changes import LevelChanges
from onestream.preprocess.cuda.device import INSTALL_GPU, DeviceArray, Stream
from onestream.preprocess.cuda.network_values import NetworkValues
from onestream.preprocess.cuda.rectify import Rectify, ToRectify
from onestream.preprocess.cuda.resize import ExactResize, ToResize
from onestream.preprocess.cuda.step_timer import StepTimer
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BackendMissing, BadImage, CannotCompile
from onestream.preprocess.geometry import Size
from onestream.preprocess.headers.reader import Encoded
from onestream.preprocess.limits import Limits, undecodable
from onestream.preprocess.moves import Resize
from onestream.preprocess.plan import Plan
from onestream.preprocess.variation import Vary, canvas_of, resize_of

if TYPE_CHECKING:
    import cvcuda


class CvCuda(CompiledOnStream):
    """Decoding and resizing on one stream, for one thread at a time.

    ``output``, uint8 (max_batch_size, height, width, channels), takes the samples of a definition that ends in uint8
    NHWC, such as a network's input; without it the backend allocates its own. All memory for samples of a fixed size is
    allocated here. ``resize`` says whose resize it is; of variations, for which ``varied`` prepares, it is always ours.
    ``timer`` gets the marks *decode*, *resize* and *normalize*.
    """

    def __init__(
        self,
        definition: Definition,
        limits: Limits,
        *,
        stream: Stream,
        max_batch_size: int,
        threads: int,
        decode: DecodeOptions,
        resize: GpuResize = "exact",
        varied: bool = False,
        output: DeviceArray | None = None,
        timer: StepTimer | None = None,
    ) -> None:
        super().__init__(definition, limits)
        refuse_reduced(definition, what="cvcuda")
        if not varied:
            refuse_inexact(definition, backend="cvcuda", own_filter=resize == "hq")
        self._stream, self._max_batch_size = stream, max_batch_size
        self._mark = timer.mark if timer else _no_mark
        self._decoder = ImageDecoder(stream, options=decode, threads=threads)
        self._channels = definition.output_spec.channels
        self._fill = level_fill(definition, backend="cvcuda")
        self._varied = varied
        self._resizer = GpuVariations(definition, stream=stream) if varied else _resizer(definition, stream, resize)
        self._values: NetworkValues | None = None
        if _is_finished(definition):
            if output is not None:
                raise ValueError("output takes uint8 NHWC samples; this definition ends otherwise")
            planar = definition.network_input.layout == "NCHW"
            self._values = NetworkValues(level_table(definition), planar=planar, stream=stream)
        # Of samples of a fixed size: their pixels, and what the network gets where that is something else.
        self._canvases: DeviceArray | None = None
        self._finished: DeviceArray | None = None
        self._staging: Sample | None = None
        height, width = definition.output_spec.size_hw
        if height is not None and width is not None:
            self._canvases = output or stream.allocate((max_batch_size, height, width, self._channels), np.uint8)
            if self._values is not None:
                shape = self._sample_shape((height, width))
                self._finished = stream.allocate((max_batch_size, *shape), definition.network_input.dtype)

    @property
    def second_chances(self) -> int:
        """JPEGs that the GPU rejected and that the CPU was asked for, so far."""
        return self._decoder.second_chances

    def run(self, images: Sequence[Encoded], varies: Sequence[Vary] | None = None) -> list[Sample | BadImage]:
        """See ``Compiled.run``. Waits once for every ``max_batch_size`` images."""
        results: list[Sample | BadImage] = []
        for first in range(0, len(images), self._max_batch_size):
            last = first + self._max_batch_size
            queued = self.enqueue(images[first:last], None if varies is None else varies[first:last])
            found: dict[int, Sample | BadImage] = {
                **queued.bad,
                **dict(zip(queued.good, self._on_host(queued), strict=True)),
            }
            results += [found[index] for index in range(len(found))]
        return results

    def _on_host(self, queued: Queued) -> list[Sample]:
        """The samples, waited for, in memory of their own: pinned memory is scarce."""
        on_host = [self._pinned(row, sample) for row, sample in enumerate(queued.samples)]
        for sample, target in zip(queued.samples, on_host, strict=True):
            self._stream.download(sample, target)
        self._stream.sync()
        return [np.array(sample) for sample in on_host]

    def _pinned(self, row: int, sample: DeviceArray) -> Sample:
        if self._canvases is None:
            return self._stream.pinned(sample.shape, sample.dtype)
        if self._staging is None:
            self._staging = self._stream.pinned((self._max_batch_size, *sample.shape), sample.dtype)
        staged: Sample = self._staging[row]
        return staged

    def run_on_device(
        self, images: Sequence[Encoded], varies: Sequence[Vary] | None = None
    ) -> tuple[DeviceArray | None, dict[int, BadImage]]:
        """Process at most ``max_batch_size`` images, of a fixed size, and leave them on the GPU, from any thread.

        Waits once. Returns the good ones in their order, None where there is none, valid until the next call, and by
        index why the others are bad.
        """
        self._stream.device.enter()
        queued = self.enqueue(images, varies)
        self._stream.sync()
        batch = self._finished or self._canvases
        assert batch is not None
        return batch.first(len(queued.good)) if queued.good else None, queued.bad

    def enqueue(self, images: Sequence[Encoded], varies: Sequence[Vary] | None = None) -> Queued:
        """See ``CompiledOnStream.enqueue``. Our code does not wait; nvImageCodec does, to tell what is damaged."""
        if len(images) > self._max_batch_size:
            raise ValueError(f"got {len(images)} images; at most {self._max_batch_size} go into a batch")
        if (varies is not None) != self._varied:
            raise ValueError("variations need compile(varied=True), which needs variations")
        planned, bad = plan_batch(images, self._planner, self.limits, varies)
        if self._canvases is not None and self._fill is not None:
            self._stream.fill(self._canvases.first(len(planned)), self._fill)
        samples: list[DeviceArray] = []
        good: list[int] = []
        for group in groups(planned, max_items=self._max_batch_size):
            whole: list[tuple[Planned, DeviceArray]] = []
            decoded = self._decoder.decode([(item.image, item.header) for item in group])
            self._mark("decode")
            for item, image in zip(group, decoded, strict=True):
                pixels = None if image is None else DeviceArray.sharing(image, self._stream.handle)
                if pixels is not None and pixels.shape == (*item.header.oriented_hw, 3):
                    whole.append((item, pixels))
                else:
                    reason = f"the {item.header.format} data is damaged or cut short and cannot be decoded"
                    bad[item.index] = undecodable(item.header, reason)
            if whole:
                samples += self._resample(whole, first=len(good))
                good += [item.index for item, _ in whole]
                self._mark("resize")
        if self._values is not None and good:
            finished = [self._sample(row, canvas) for row, canvas in enumerate(samples)]
            self._values.enqueue(samples, finished)
            samples = finished
            self._mark("normalize")
        return Queued(tuple(samples), tuple(good), bad)

    def _resample(self, decoded: Sequence[tuple[Planned, DeviceArray]], *, first: int) -> list[DeviceArray]:
        """Bring decoded images to their canvases, in rows from ``first`` on, and return the canvases."""
        canvases = [self._canvas(row, item.plan) for row, (item, _) in enumerate(decoded, start=first)]
        self._resizer.enqueue(
            [ToResize(pixels, item.plan, canvas) for (item, pixels), canvas in zip(decoded, canvases, strict=True)]
        )
        return canvases

    def _canvas(self, row: int, plan: Plan) -> DeviceArray:
        if self._canvases is not None:
            return self._canvases.at(row)
        canvas = self._stream.allocate((*plan.canvas_hw, self._channels), np.uint8)
        if self._fill is not None:
            self._stream.fill(canvas, self._fill)
        return canvas

    def _sample(self, row: int, canvas: DeviceArray) -> DeviceArray:
        """Where the network's values of a canvas go."""
        if self._finished is not None:
            return self._finished.at(row)
        height, width, _ = canvas.shape
        return self._stream.allocate(self._sample_shape((height, width)), self.definition.network_input.dtype)

    def _sample_shape(self, size_hw: Size) -> tuple[int, ...]:
        planar = self.definition.network_input.layout == "NCHW"
        return (self._channels, *size_hw) if planar else (*size_hw, self._channels)


class GpuVariations:
    """Varies pictures for one definition on one stream; belongs to its thread. Nothing waits.

    Every bit is the reference's. Boxes are resized by Pillow's arithmetic and mirrored on the way; other transforms are
    made smaller by it and then sampled by the kernel that rectifies regions. Changes of levels follow, step by step. On
    a GPU it was **not measured**: its kernels ran by a C++ compiler. Raises ``ValueError`` where the definition's
    output size depends on the image.
    """

    def __init__(self, definition: Definition, *, stream: Stream) -> None:
        self._stream, self._canvas_hw = stream, canvas_of(definition)
        self._channels, to_bgr = definition.output_spec.channels, definition.color == "bgr"
        resize = resize_of(definition, self._canvas_hw)
        self._boxes = ExactResize(resize, channels=self._channels, to_bgr=to_bgr, stream=stream)
        # Of sizes that do not change, gray is made of colours and nothing else.
        triangle = Resize(mode="exact", size=self._canvas_hw)
        self._shrink = ExactResize(triangle, channels=self._channels, stream=stream)
        self._sample = Rectify(stream, channels=self._channels, to_bgr=to_bgr)
        self._changes = LevelChanges(stream, bgr=to_bgr)

    def enqueue(self, items: Sequence[ToResize]) -> None:
        """Queue a batch, of plans with variations. The pictures must stay until the stream has passed.

        Raises ``CannotCompile`` for what the kernels lack: a change, a warp, and a canvas that is not the definition's.
        """
        boxes: list[ToResize] = []
        smaller: list[ToResize] = []
        sampled: list[ToRectify] = []
        changes: list[tuple[DeviceArray, Sequence[AnyChange]]] = []
        for item in items:
            plan, variation, source = item.plan, item.plan.variation, item.source
            assert variation is not None
            if plan.moved is not None or plan.canvas_hw != self._canvas_hw:
                lacking = "warp" if plan.moved is not None else "several samples on one canvas"
                raise CannotCompile(f"cvcuda on a GPU lacks {lacking}; device='cpu' can")
            changes.append((item.canvas, variation.changes))
            if plan.transform is None:
                boxes.append(item)
                continue
            cut = plan.cut
            if self._channels == 1 or plan.resized_hw != cut.size_hw:
                shrunk = self._stream.allocate((*plan.resized_hw, self._channels), np.uint8)
                smaller.append(ToResize(source, plan, shrunk))
                source = shrunk
            else:
                source = source.window(cut.top, cut.left, cut.height, cut.width)
            sampled.append(ToRectify(source, plan.transform, item.canvas, fill=variation.fill))
        self._boxes.enqueue(boxes)
        self._shrink.enqueue(smaller)
        self._sample.enqueue(sampled)
        self._changes.enqueue(changes)


class _Resizer(Protocol):
    """What brings decoded pictures to their canvases."""

    def enqueue(self, items: Sequence[ToResize]) -> None:
        """Queue a batch."""


def _resizer(definition: Definition, stream: Stream, resize: GpuResize) -> _Resizer:
    if resize == "exact":
        channels, to_bgr = definition.output_spec.channels, definition.color == "bgr"
        return ExactResize(definition.resize, channels=channels, to_bgr=to_bgr, stream=stream)
    from onestream.preprocess.backends.hq_resize import HqResize

    return HqResize(definition.resize, color=definition.color, stream=stream)


def _is_finished(definition: Definition) -> bool:
    """Whether anything follows the uint8 NHWC pixels."""
    return definition.network_input.dtype != "uint8" or definition.network_input.layout != "NHWC"


def as_tensor(array: DeviceArray, layout: Literal["NHWC", "NCHW"]) -> cvcuda.ExternalBuffer:
    """A batch as an object with ``__dlpack__``, for libraries that read nothing else. It shares the memory.

    Raises ``BackendMissing`` where CV-CUDA cannot be loaded.
    """
    try:
        import cvcuda
    except ImportError as error:
        raise BackendMissing(
            f"handing pixels over needs cvcuda and an NVIDIA driver: {INSTALL_GPU} ({error})"
        ) from error
    shared = cast("cvcuda.ExternalBuffer", array)
    return cast("cvcuda.ExternalBuffer", cvcuda.as_tensor(shared, layout).cuda())


def _no_mark(_step: str) -> None:
    """Keep no time."""
