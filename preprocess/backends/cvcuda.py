"""NVIDIA CV-CUDA: the definition as kernels on one CUDA stream, after nvImageCodec decoded on the same stream.

Every image's window goes from its decoded pixels straight to its place in the batch by one antialiased resize
(``hq_resize`` with a region per image), so nothing is resized that a crop drops and no crop or stack follows.
Normalization, layout and dtype are one kernel more; a served pipeline leaves them to the network.

The filter is DALI's: within one level of Pillow's, except in the outermost pixels of an uncropped image, where
Pillow renormalizes the filter and CV-CUDA repeats the border.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import numpy.typing as npt

from onestream.preprocess.backends.base import Compiled, DecodeOptions, Sample
from onestream.preprocess.backends.exactness import refuse_inexact
from onestream.preprocess.backends.gpu_plan import Planned, plan_batch
from onestream.preprocess.backends.groups import groups
from onestream.preprocess.backends.nvimgcodec import ImageDecoder
from onestream.preprocess.cuda.device import INSTALL_GPU, DeviceArray, Stream
from onestream.preprocess.cuda.step_timer import StepTimer
from onestream.preprocess.definition import Definition, Normalize, Resize
from onestream.preprocess.errors import BackendMissing, BadImage, CannotCompile
from onestream.preprocess.geometry import fill_values
from onestream.preprocess.headers.reader import Encoded
from onestream.preprocess.limits import Limits
from onestream.preprocess.memory import undecodable
from onestream.preprocess.variation import Vary

try:
    import cvcuda
except ImportError as error:
    raise BackendMissing(f"the cvcuda backend needs cvcuda and an NVIDIA driver: {INSTALL_GPU} ({error})") from error

CACHE_BYTES = 256 * 1024 * 1024
"""What CV-CUDA may keep of freed memory; without a bound it grows with every new image size (CV-CUDA#231)."""
_NO_FLIP = 2


@dataclass(frozen=True, slots=True)
class Queued:
    """The work that ``CvCuda.enqueue`` queued: a sample for each index of ``good``, and the errors of the others."""

    samples: tuple[DeviceArray, ...]
    good: tuple[int, ...]
    bad: dict[int, BadImage]


class CvCuda(Compiled):
    """CV-CUDA on one stream. Belongs to the thread that makes it.

    ``output``, uint8 (max_batch_size, height, width, channels), takes the samples of a definition that ends in uint8
    NHWC, such as a network's input; without it the backend allocates its own. All memory for samples of a fixed size is
    allocated here. ``timer`` gets the marks *decode*, *resize* and *normalize*.
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
        output: DeviceArray | None = None,
        timer: StepTimer | None = None,
    ) -> None:
        super().__init__(definition, limits)
        refuse(definition)
        self._stream, self._max_batch_size = stream, max_batch_size
        self._mark = timer.mark if timer else _no_mark
        self._queue = cvcuda.as_stream(stream.handle)
        cvcuda.set_cache_limit_inbytes(CACHE_BYTES)
        self._decoder = ImageDecoder(stream, options=decode, threads=threads)
        self._channels = definition.output_spec.channels
        self._format = cvcuda.Format.RGB8 if self._channels == 3 else cvcuda.Format.U8
        self._fill = next(iter(fill_values(definition)), None)
        resizes = any(isinstance(operation, Resize) for operation in definition.geometry)
        # Without a resize the window is copied pixel by pixel.
        self._interpolation = cvcuda.Interp.LINEAR if resizes else cvcuda.Interp.NEAREST
        self._canvases: DeviceArray | None = None
        self._whole: list[cvcuda.Image] = []
        self._finish: _Finish | None = None
        self._staging: Sample | None = None
        height, width = definition.output_spec.size_hw
        if height is not None and width is not None:
            canvases = output or stream.allocate((max_batch_size, height, width, self._channels), np.uint8)
            self._canvases = canvases
            self._whole = [self._image(canvases.at(index)) for index in range(max_batch_size)]
            if _is_finished(definition):
                if output is not None:
                    raise ValueError("output takes uint8 NHWC samples; this definition ends otherwise")
                self._finish = _Finish(definition, stream, self._queue, max_batch_size)

    @property
    def second_chances(self) -> int:
        """JPEGs that the GPU rejected and that the CPU was asked for, so far."""
        return self._decoder.second_chances

    def run(self, images: Sequence[Encoded], varies: Sequence[Vary] | None = None) -> list[Sample | BadImage]:
        """See ``Compiled.run``. Waits once for every ``max_batch_size`` images."""
        if varies is not None:
            raise ValueError("variations need compile(varied=True), which cvcuda does not offer")
        results: list[Sample | BadImage] = []
        for first in range(0, len(images), self._max_batch_size):
            queued = self.enqueue(images[first : first + self._max_batch_size])
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

    def enqueue(self, images: Sequence[Encoded]) -> Queued:
        """Queue a batch of at most ``max_batch_size`` images.

        Good images take consecutive rows; their samples are valid on the stream until the next call. Our code does
        not wait; nvImageCodec does, to tell which images are damaged. Raises ``ValueError`` for a larger batch.
        """
        if len(images) > self._max_batch_size:
            raise ValueError(f"got {len(images)} images; at most {self._max_batch_size} go into a batch")
        planned, bad = plan_batch(images, self.definition, self.limits)
        if self._canvases is not None and self._fill is not None:
            self._stream.fill(self._canvases.first(len(planned)), self._fill)
        samples: list[DeviceArray] = []
        good: list[int] = []
        for group in groups(planned, max_images=self._max_batch_size):
            decoded = self._decoder.decode([(item.image, item.header) for item in group])
            self._mark("decode")
            whole = [(item, image) for item, image in zip(group, decoded, strict=True) if image is not None]
            for item, image in zip(group, decoded, strict=True):
                if image is None:
                    reason = f"the {item.header.format} data is damaged or cut short and cannot be decoded"
                    bad[item.index] = undecodable(item.header, reason)
            if whole:
                batch = cvcuda.as_images([image for _, image in whole], cvcuda.Format.RGB8)
                samples += self._resample(batch, [item for item, _ in whole], first=len(good))
                good += [item.index for item, _ in whole]
                self._mark("resize")
        if self._finish is not None and good:
            finished = self._finish.run(self._whole[: len(good)])
            samples = [finished.at(row) for row in range(len(good))]
            self._mark("normalize")
        return Queued(tuple(samples), tuple(good), bad)

    def _resample(self, decoded: cvcuda.ImageBatchVarShape, items: list[Planned], *, first: int) -> list[DeviceArray]:
        """Bring decoded images to their canvases, in rows from ``first`` on, and return the canvases."""
        batch = decoded
        if self._channels == 1:
            batch = cvcuda.cvtcolor(decoded, cvcuda.ColorConversion.RGB2GRAY, stream=self._queue)
        canvases, targets = [], []
        for row, item in enumerate(items, start=first):
            canvas = self._canvas(row, item)
            canvases.append(canvas)
            target = item.resample.target
            if self._canvases is not None and (target.height, target.width) == item.resample.canvas_hw:
                targets.append(self._whole[row])
            else:
                targets.append(self._image(canvas.window(target.top, target.left, target.height, target.width)))
        resample_into(
            targets,
            batch,
            [item.resample.source for item in items],
            interpolation=self._interpolation,
            queue=self._queue,
        )
        decoded.clear()
        return canvases

    def _canvas(self, row: int, item: Planned) -> DeviceArray:
        if self._canvases is not None:
            return self._canvases.at(row)
        canvas = self._stream.allocate((*item.resample.canvas_hw, self._channels), np.uint8)
        if self._fill is not None:
            self._stream.fill(canvas, self._fill)
        return canvas

    def _image(self, pixels: DeviceArray) -> cvcuda.Image:
        return cvcuda.as_image(external(pixels), self._format)


def resample_into(
    targets: list[cvcuda.Image],
    batch: cvcuda.ImageBatchVarShape,
    sources: list[tuple[float, float, float, float]],
    *,
    interpolation: cvcuda.Interp,
    queue: cvcuda.Stream,
) -> None:
    """Queue the antialiased resize of a region of each image, ``Resample.source``, to its target. Empties ``batch``."""
    # At once: CV-CUDA waits for an event of its own at every change of a batch.
    into = cvcuda.ImageBatchVarShape(len(targets))
    into.pushback(targets)
    cvcuda.hq_resize_into(
        into,
        batch,
        antialias=interpolation == cvcuda.Interp.LINEAR,
        roi=sources,
        interpolation=interpolation,
        stream=queue,
    )
    # CV-CUDA keeps batches for later with all their images, which no limit of its cache counts.
    for used in (batch, into):
        used.clear()


class _Finish:
    """Normalization, layout and dtype of a whole batch, in one kernel."""

    def __init__(self, definition: Definition, stream: Stream, queue: cvcuda.Stream, max_batch_size: int) -> None:
        spec, network_input = definition.output_spec, definition.network_input
        height, width = spec.size_hw
        assert height is not None
        assert width is not None
        self._queue = queue
        self._format = cvcuda.Format.RGB8 if spec.channels == 3 else cvcuda.Format.U8
        self._layout = network_input.layout
        self._output = stream.allocate((max_batch_size, *cast(tuple[int, ...], spec.shape)), spec.dtype)
        normalize = definition.normalize or Normalize(mean=(0,) * spec.channels, std=(1,) * spec.channels, scale=1)
        mean = np.asarray(normalize.mean, np.float64) * normalize.scale
        factor = 1 / (np.asarray(normalize.std, np.float64) * normalize.scale)
        whole = np.array([0, 0, width, height], np.int32)
        self._base, self._scale, self._rectangles, self._flips = _constants(
            stream,
            (mean.astype(np.float32)[None, None, None], "NHWC"),
            (factor.astype(np.float32)[None, None, None], "NHWC"),
            (np.tile(whole, (max_batch_size, 1))[:, None, None], "NHWC"),
            (np.full((max_batch_size, 1), _NO_FLIP, np.int32), "NC"),
        )

    def run(self, canvases: list[cvcuda.Image]) -> DeviceArray:
        """Queue it for a batch of canvases; the result is valid on the stream until the next call."""
        source = cvcuda.ImageBatchVarShape(len(canvases))
        source.pushback(canvases)
        output = self._output.first(len(canvases))
        cvcuda.crop_flip_normalize_reformat_into(
            cvcuda.as_tensor(external(output), self._layout),
            source,
            self._rectangles,
            self._flips,
            self._base,
            self._scale,
            stream=self._queue,
        )
        return output


def _constants(stream: Stream, *constants: tuple[npt.NDArray[np.generic], str]) -> list[cvcuda.Tensor]:
    """Values with their layouts on the GPU, waited for: ``constants`` hold the memory that is copied."""
    tensors = []
    for values, layout in constants:
        array = stream.allocate(values.shape, values.dtype)
        stream.upload(values, array)
        tensors.append(cvcuda.as_tensor(external(array), layout))
    stream.sync()
    return tensors


def refuse(definition: Definition) -> None:
    """Raise ``CannotCompile`` for what CV-CUDA cannot do exactly."""
    refuse_inexact(definition, backend="cvcuda", device="gpu")
    if definition.network_input.dtype == "float16":
        raise CannotCompile(
            "cvcuda gives uint8 or float32, not float16; leave the conversion to the network, or use dali"
        )
    if None in definition.output_spec.size_hw and _is_finished(definition):
        raise CannotCompile(
            "cvcuda normalizes whole batches, so samples need one size; end the geometry with center_crop, pad, "
            "letterbox or an exact resize"
        )


def _is_finished(definition: Definition) -> bool:
    """Whether anything follows the uint8 NHWC pixels."""
    return definition.network_input.dtype != "uint8" or definition.network_input.layout != "NHWC"


def as_tensor(array: DeviceArray, layout: Literal["NHWC", "NCHW"]) -> cvcuda.ExternalBuffer:
    """A batch as an object with ``__dlpack__``, for libraries that read nothing else. It shares the memory."""
    return cast("cvcuda.ExternalBuffer", cvcuda.as_tensor(external(array), layout).cuda())


def _no_mark(_step: str) -> None:
    """Keep no time."""


def external(array: DeviceArray) -> cvcuda.ExternalBuffer:
    """Our array for CV-CUDA, which accepts every object with a CUDA Array Interface but declares its own class."""
    return cast("cvcuda.ExternalBuffer", array)
