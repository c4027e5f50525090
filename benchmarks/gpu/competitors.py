"""What is compared at preprocessing: encoded images to normalized float32 samples, on a GPU and on the host's cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import numpy as np

from benchmarks.gpu.measure import Batch
from benchmarks.gpu.results import Family
from onestream.preprocess import BadImage, CannotCompile, CenterCrop, Definition, Limits, Resize, compile
from onestream.preprocess.backends.base import Compiled, DecodeOptions, GpuResize, Sample
from onestream.preprocess.cuda.device import Device

HARDWARE_SHARE = 0.9
"""Share of the images that the JPEG hardware of some GPUs gets where it is used."""
GPU_LANES = 3
_CPU_BATCH = 4

ANTIALIASED_LEVELS = 1.0
"""Largest mean difference from the reference, in 8-bit levels, of what resizes with antialiasing: twice what parity is
aimed at. Another filter, colour order or a crop that is one pixel off moves several levels."""
PLAIN_LEVELS = 5.0
"""The same for OpenCV: INTER_LINEAR does not antialias and INTER_AREA is another filter, which takes 1 to 3 levels."""


class Preprocessor(Protocol):
    """One lane's preprocessing."""

    def process(self, images: Batch) -> None:
        """Preprocess a batch; returns when its samples are there, on the GPU or on the host."""
        ...

    def samples(self, images: Batch) -> list[Sample]:
        """The samples on the host, float32 (channels, height, width)."""
        ...


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to preprocess. ``lanes`` threads are opened; each of ``in_flight`` numbers of batches is measured.

    ``batches`` are the sizes that it is measured at; on the host an image's cost does not depend on it, and all cores
    are kept busy at any size, so there is one. ``exact`` ones may not change the network's best class of any photo;
    the mean difference of all is bounded by ``mean_levels``.
    """

    name: str
    family: Family
    open: Callable[[], Preprocessor]
    lanes: int
    in_flight: tuple[int, ...]
    batches: tuple[int, ...]
    device: Device | None
    mean_levels: float
    exact: bool


def settings(
    definition: Definition, limits: Limits, *, device: Device, cores: int, batches: Sequence[int]
) -> list[Setting]:
    """Every way that is compared, whether it can be opened here or not."""
    largest, threads = max(batches), max(1, cores // GPU_LANES)
    gpu = partial(
        Setting,
        lanes=GPU_LANES,
        in_flight=(1, GPU_LANES),
        batches=tuple(batches),
        device=device,
        mean_levels=ANTIALIASED_LEVELS,
        exact=True,
    )
    host = partial(Setting, lanes=cores, in_flight=(cores,), device=None)
    # One image at a time, so that no core idles while another ends a batch.
    opencv = partial(host, batches=(1,), mean_levels=PLAIN_LEVELS, exact=False)

    def cv_cuda(decode: DecodeOptions, resize: GpuResize = "exact") -> Callable[[], Preprocessor]:
        return lambda: _CvCuda(
            definition, limits, device, max_batch_size=largest, threads=threads, decode=decode, resize=resize
        )

    def dali(decode: DecodeOptions) -> Callable[[], Preprocessor]:
        return lambda: _DaliOnGpu(definition, limits, max_batch_size=largest, threads=threads, decode=decode)

    on_cuda, with_hardware = DecodeOptions("gpu"), DecodeOptions("gpu", HARDWARE_SHARE)
    return [
        gpu("CV-CUDA, decode gpu", "CV-CUDA", cv_cuda(on_cuda)),
        gpu("CV-CUDA, decode gpu, JPEG hardware", "CV-CUDA", cv_cuda(with_hardware)),
        gpu("CV-CUDA, decode hybrid", "CV-CUDA", cv_cuda(DecodeOptions("hybrid"))),
        gpu("CV-CUDA, decode gpu, resize hq", "CV-CUDA", cv_cuda(on_cuda, "hq")),
        gpu("DALI on the GPU", "DALI on the GPU", dali(on_cuda)),
        gpu("DALI on the GPU, JPEG hardware", "DALI on the GPU", dali(with_hardware)),
        host(
            "ours on the CPU",
            "ours on the CPU",
            lambda: _OnCpu(definition, limits),
            batches=(_CPU_BATCH,),
            mean_levels=ANTIALIASED_LEVELS,
            exact=True,
        ),
        opencv("OpenCV, INTER_LINEAR", "OpenCV", lambda: _OpenCv(definition, "INTER_LINEAR")),
        opencv("OpenCV, INTER_AREA", "OpenCV", lambda: _OpenCv(definition, "INTER_AREA")),
    ]


class _CvCuda:
    def __init__(
        self,
        definition: Definition,
        limits: Limits,
        device: Device,
        *,
        max_batch_size: int,
        threads: int,
        decode: DecodeOptions,
        resize: GpuResize,
    ) -> None:
        from onestream.preprocess.backends.cvcuda import CvCuda

        self._stream = device.stream()
        self._backend = CvCuda(
            definition,
            limits,
            stream=self._stream,
            max_batch_size=max_batch_size,
            threads=threads,
            decode=decode,
            resize=resize,
        )

    def process(self, images: Batch) -> None:
        bad = self._backend.enqueue(images).bad
        self._stream.sync()
        _all_good(bad.values())

    def samples(self, images: Batch) -> list[Sample]:
        return _all_good(self._backend.run(images))


class _DaliOnGpu:
    def __init__(
        self, definition: Definition, limits: Limits, *, max_batch_size: int, threads: int, decode: DecodeOptions
    ) -> None:
        from onestream.preprocess.backends.dali import Dali

        self._backend = Dali(
            definition, limits, device="gpu", max_batch_size=max_batch_size, threads=threads, decode=decode
        )

    def process(self, images: Batch) -> None:
        # DALI has waited for its stream when it returns.
        _, bad = self._backend.run_on_device(images)
        _all_good(bad.values())

    def samples(self, images: Batch) -> list[Sample]:
        return _all_good(self._backend.run(images))


class _OnCpu:
    def __init__(self, definition: Definition, limits: Limits) -> None:
        self._backend: Compiled = compile(
            definition, backend="dali", limits=limits, max_batch_size=_CPU_BATCH, threads=1
        )

    def process(self, images: Batch) -> None:
        self.samples(images)

    def samples(self, images: Batch) -> list[Sample]:
        return _all_good(self._backend.run(images))


class _OpenCv:
    """Decode, resize the shorter side, crop, normalize: as most people write it, one thread of OpenCV's own."""

    def __init__(self, definition: Definition, interpolation: Literal["INTER_LINEAR", "INTER_AREA"]) -> None:
        import cv2

        resize, crop = definition.geometry
        normalize = definition.normalize
        if not (isinstance(resize, Resize) and isinstance(resize.size, int) and isinstance(crop, CenterCrop)):
            raise CannotCompile("the OpenCV competitor is written for: resize the shorter side, center_crop")
        if normalize is None or definition.network_input.layout != "NCHW":
            raise CannotCompile("the OpenCV competitor is written for normalized NCHW samples")
        cv2.setNumThreads(1)
        self._cv2 = cv2
        self._interpolation = getattr(cv2, interpolation)
        self._side, self._crop = resize.size, crop.size
        self._mean = np.asarray(normalize.mean, np.float32) * np.float32(normalize.scale)
        self._std = np.asarray(normalize.std, np.float32) * np.float32(normalize.scale)

    def process(self, images: Batch) -> None:
        self.samples(images)

    def samples(self, images: Batch) -> list[Sample]:
        return [self._one(image) for image in images]

    def _one(self, file: bytes) -> Sample:
        cv2 = self._cv2
        image = cv2.cvtColor(cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        height, width = image.shape[:2]
        shorter = min(height, width)
        size = (width * self._side // shorter, height * self._side // shorter)
        image = cv2.resize(image, size, interpolation=self._interpolation)
        high, wide = self._crop
        top, left = round((size[1] - high) / 2), round((size[0] - wide) / 2)
        cropped = image[top : top + high, left : left + wide].astype(np.float32)
        return np.ascontiguousarray(((cropped - self._mean) / self._std).transpose(2, 0, 1))


def _all_good(results: Iterable[Sample | BadImage]) -> list[Sample]:
    samples = []
    for result in results:
        if isinstance(result, BadImage):
            raise result
        samples.append(result)
    return samples
