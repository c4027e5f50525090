"""One batch on one CUDA stream: decode, resize, network and postprocessing queued in order, waited for once.

Triton's model and processes without Triton run it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from onestream.postprocess.kinds import Postprocess, Tensors
from onestream.postprocess.parameters import Parameters
from onestream.preprocess import BadImage, Compiled, Definition, Limits, compile
from onestream.preprocess.backends.base import ON_CPU, CompiledForGpu, CompiledOnStream
from onestream.preprocess.backends.table import BACKENDS, NetworkInput, Opening
from onestream.preprocess.cuda.device import Device, DeviceArray, Stream
from onestream.preprocess.cuda.step_timer import StepTimer
from onestream.preprocess.headers.reader import Encoded, read_header
from onestream.serving.engine import DeviceEngine, open_engine
from onestream.serving.engine.cpu import Inputs
from onestream.serving.engine.network_files import NETWORK_FILE, gpu_network
from onestream.serving.graph.onnx_postprocess import fused_network
from onestream.serving.pipeline import GpuOptions
from onestream.wire.tensor_names import IMAGE_SIZE, PIXELS, PIXELS_OF

if TYPE_CHECKING:
    # It reads configurations with Triton's client, which a GPU's tests have not.
    from onestream.serving.models.loaded import LoadedModel, Pictures

Outputs = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The results of a batch.

    ``outputs`` hold one row for each index of ``good``, in that order; ``bad`` says by index why the others have none.
    ``step_ms`` is GPU time by step. The arrays are the caller's.
    """

    outputs: Outputs
    good: tuple[int, ...]
    bad: dict[int, BadImage]
    step_ms: dict[str, float]


class OneStream:
    """A pipeline on one stream of a GPU, for one thread at a time, which enters the device. Several overlap.

    ``engine`` holds the network with its postprocessing (``onestream.serving.graph.onnx_postprocess``) and takes a
    definition's pixels.
    """

    def __init__(
        self, definition: Definition, limits: Limits, engine: DeviceEngine, *, device: Device, options: GpuOptions
    ) -> None:
        device.enter()
        self._stream = device.stream()
        self._timer = StepTimer(self._stream)
        self._session = engine.open(self._stream)
        self._sources = {
            name: open_source(
                definition, limits, options=options, stream=self._stream, target=target, timer=self._timer
            )
            for name, target in self._session.inputs.items()
            if name == PIXELS or name.startswith(PIXELS_OF)
        }
        self._max_batch_size = engine.max_batch_size
        self._beside: Outputs = {
            name: self._stream.pinned(array.shape, array.dtype)
            for name, array in self._session.inputs.items()
            if name not in self._sources
        }
        self._host: Outputs = {
            name: self._stream.pinned(array.shape, array.dtype) for name, array in self._session.outputs.items()
        }

    def run(
        self, images: Sequence[Encoded], inputs: Sequence[Inputs] = (), pictures: Sequence[Pictures] = ()
    ) -> BatchResult:
        """Run a batch. The only wait of ours is the one before the outputs are read; where one of several pictures of a
        request is refused, there is another.

        ``inputs`` are those of the network beside the pixels and the picture's size, of each picture with a batch
        dimension of 1, ``pictures`` the others of each one's request. Raises ``ValueError`` for more images than the
        engine takes.
        """
        if len(images) > self._max_batch_size:
            raise ValueError(f"got {len(images)} images; the engine takes {self._max_batch_size}")
        self._timer.start()
        filled = self._fill(images, pictures)
        count = len(filled.good)
        if not count:
            return BatchResult({}, (), filled.bad, {})
        for name, staged in self._beside.items():
            for row, index in enumerate(filled.good):
                staged[row] = read_header(images[index]).oriented_hw if name == IMAGE_SIZE else inputs[index][name][0]
            self._stream.upload(staged[:count], self._session.inputs[name])
        self._session.enqueue(count)
        self._timer.mark("network")
        for name, array in self._session.outputs.items():
            self._stream.download(array.first(count), self._host[name])
        self._timer.mark("read")
        self._stream.sync()
        outputs = {name: np.array(host[:count]) for name, host in self._host.items()}
        return BatchResult(outputs, filled.good, filled.bad, self._timer.milliseconds())

    def _fill(self, images: Sequence[Encoded], pictures: Sequence[Pictures]) -> Filled:
        """Fill the rows of every input that takes pictures, with the same requests in the same order."""
        left, bad = list(range(len(images))), dict[int, BadImage]()
        while True:
            refused: dict[int, BadImage] = {}
            for name, source in self._sources.items():
                if name == PIXELS:
                    refused |= {left[row]: error for row, error in source.fill([images[i] for i in left]).bad.items()}
                    continue
                found = source.fill([pictures[i][name] for i in left]).bad.items()
                named = {left[row]: error.named(name.removeprefix(PIXELS_OF)) for row, error in found}
                refused = named | refused
            left, bad = [index for index in left if index not in refused], bad | refused
            # One source leaves out what it refuses by itself.
            if not refused or not left or len(self._sources) == 1:
                return Filled(tuple(left), bad)
            self._stream.sync()


@dataclass(frozen=True, slots=True)
class GpuSteps:
    """A pipeline on one stream of a GPU, and what of its postprocessing is the host's. For one thread at a time.

    ``told`` is called with a step's name and its GPU time in ms.
    """

    stream: OneStream
    postprocess: Postprocess
    told: Callable[[str, float], None] = lambda _step, _milliseconds: None

    def __call__(
        self,
        images: Sequence[Encoded],
        parameters: Sequence[Parameters] = (),
        inputs: Sequence[Inputs] = (),
        pictures: Sequence[Pictures] = (),
    ) -> list[Tensors | BadImage]:
        """The outputs of each picture, with a batch dimension of 1, or why it is refused. Raises as the stream does.

        ``parameters``, ``inputs`` and ``pictures`` are those of each picture's request, or empty, as of ``FusedSteps``.
        """
        result = self.stream.run(images, inputs, pictures)
        for step, milliseconds in result.step_ms.items():
            self.told(step, milliseconds)
        found: dict[int, Tensors | BadImage] = dict(result.bad)
        if result.good:
            sizes = [read_header(images[index]).oriented_hw for index in result.good]
            own = [parameters[index] for index in result.good] if parameters else ()
            found |= zip(result.good, self.postprocess(result.outputs, sizes, own), strict=True)
        return [found[index] for index in range(len(images))]


def open_fused_engine(
    model: LoadedModel, device: Device, *, progress: Callable[[str], None] = lambda _: None
) -> DeviceEngine:
    """The engine of a fused model; see ``open_engine``."""
    options = model.gpu_options
    network = gpu_network(model.version_folder / NETWORK_FILE, options.network_precision)
    return open_engine(
        fused_network(network, model.parameters["postprocess"]),
        options=options,
        device=device,
        definition=model.definition,
        progress=progress,
    )


@dataclass(frozen=True, slots=True)
class Filled:
    """The images of a batch that took the first rows of the input, in order, and the errors of the others by index."""

    good: tuple[int, ...]
    bad: dict[int, BadImage]


class PixelSource(ABC):
    """Brings encoded images to a network's input, queued on a stream. For one thread at a time."""

    @abstractmethod
    def fill(self, images: Sequence[Encoded]) -> Filled:
        """Queue the pixels of at most as many images as the input has rows, ordered before the network.

        The stream must be waited for before the next call.
        """


def open_source(
    definition: Definition,
    limits: Limits,
    *,
    options: GpuOptions,
    stream: Stream,
    target: DeviceArray,
    timer: StepTimer,
) -> PixelSource:
    """The source that ``options`` ask for. ``target`` is uint8 (max_batch_size, height, width, channels).

    Raises ``CannotCompile`` where it cannot do the definition exactly.
    """
    pixels, rows = definition.pixels(), target.shape[0]
    if options.decode == "cpu":
        on_cpu = compile(pixels, backend=ON_CPU, limits=limits, max_batch_size=rows, threads=options.decoder_threads)
        return _FromCpu(on_cpu, stream, target, timer)
    opened = BACKENDS[options.backend].open(
        pixels,
        limits,
        Opening(
            device="gpu",
            max_batch_size=rows,
            threads=options.decoder_threads,
            decode=options.decoding,
            resize=options.resize,
            network=NetworkInput(stream, target, timer),
        ),
    )
    if isinstance(opened, CompiledOnStream):
        return _OnStream(opened)
    return _Copied(cast("CompiledForGpu", opened), stream, target, timer)


class _OnStream(PixelSource):
    """Writes into the target by itself."""

    def __init__(self, backend: CompiledOnStream) -> None:
        self._backend = backend

    def fill(self, images: Sequence[Encoded]) -> Filled:
        queued = self._backend.enqueue(images)
        return Filled(queued.good, queued.bad)


class _Copied(PixelSource):
    """DALI, which has a stream of its own and waits for it: its samples are copied on ours."""

    def __init__(self, backend: CompiledForGpu, stream: Stream, target: DeviceArray, timer: StepTimer) -> None:
        self._backend, self._stream, self._target, self._timer = backend, stream, target, timer
        self._copied: object = None

    def fill(self, images: Sequence[Encoded]) -> Filled:
        tensor, bad = self._backend.run_on_device(images)
        # DALI gives the memory to others when nobody holds the tensor, and the copy on our stream may be pending.
        self._copied = tensor
        self._timer.mark("decode")
        good = tuple(index for index in range(len(images)) if index not in bad)
        if good:
            rows = self._target.first(len(good))
            self._stream.copy(DeviceArray(tensor.data_ptr(), rows.shape, rows.dtype, self._stream.handle, tensor), rows)
            self._timer.mark("copy")
        return Filled(good, bad)


class _FromCpu(PixelSource):
    """The CPU decodes only what the crop keeps and resizes it; a network's pixels are all that crosses."""

    def __init__(self, compiled: Compiled, stream: Stream, target: DeviceArray, timer: StepTimer) -> None:
        self._compiled, self._stream, self._target, self._timer = compiled, stream, target, timer
        self._pinned: npt.NDArray[np.uint8] = stream.pinned(target.shape, np.uint8)

    def fill(self, images: Sequence[Encoded]) -> Filled:
        good: list[int] = []
        bad: dict[int, BadImage] = {}
        for index, sample in enumerate(self._compiled.run(images)):
            if isinstance(sample, BadImage):
                bad[index] = sample
            else:
                self._pinned[len(good)] = sample
                good.append(index)
        self._timer.mark("decode")
        if good:
            self._stream.upload(self._pinned[: len(good)], self._target)
            self._timer.mark("copy")
        return Filled(tuple(good), bad)
