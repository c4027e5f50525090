"""A cascade on one CUDA stream: pictures decoded, cut and resized there, networks on the same stream.

The host decides between stages which regions go on, so it waits once for each stage's network, however many pictures
and regions there are, as long as their samples are in memory at once (``Stages``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from onestream.preprocess import WHOLE_PICTURE, BadImage, CannotCompile, Limits
from onestream.preprocess.backends.batches import Planned, groups, plan_batch
from onestream.preprocess.backends.cvcuda import CvCuda
from onestream.preprocess.backends.gpu_pictures import GpuFromPicture
from onestream.preprocess.cuda.device import Device, DeviceArray, Stream
from onestream.preprocess.cuda.reading import Reading
from onestream.preprocess.cuda.step_timer import StepTimer
from onestream.preprocess.geometry import Quads
from onestream.preprocess.headers.reader import Encoded
from onestream.preprocess.plan import Planner
from onestream.serving.engine import FreeSession, open_free_session
from onestream.serving.engine.network_files import float_network
from onestream.serving.errors import NetworkFailed
from onestream.serving.models.deadline import Caller
from onestream.serving.models.stage_runners import Networks, Samples
from onestream.serving.models.stages import OpenStage, StageParameters, Stages
from onestream.serving.pipeline import GpuOptions

if TYPE_CHECKING:
    from onestream.postprocess.kinds import Tensors

_REGIONS_AT_ONCE = 4096
"""Of all pictures of a batch; their pixels are a bound too."""


class CascadeStream:
    """A cascade on one stream of a GPU, for one thread at a time, which enters the device. Several overlap.

    ``open_session`` loads the network of a stage on the stream. ``told`` is called with a step's name and its GPU time
    in ms, ``timed`` counts the time of the host's own steps, ``looked_at`` is that of ``Stages``. Raises
    ``CannotCompile`` naming what it cannot do, and what ``open_session`` raises.
    """

    def __init__(
        self,
        stages: Sequence[OpenStage],
        open_session: Callable[[OpenStage, Stream], FreeSession],
        limits: Limits,
        *,
        device: Device,
        options: GpuOptions,
        told: Callable[[str, float], None] = lambda _step, _milliseconds: None,
        timed: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
        looked_at: Callable[[str, Quads], None] = lambda _stage, _quads: None,
    ) -> None:
        if options.decode == "cpu":
            raise CannotCompile(
                "a cascade on a GPU decodes whole pictures there; expected decode gpu or hybrid, got cpu"
            )
        device.enter()
        self._stream, self._limits, self._max_batch_size = device.stream(), limits, options.max_batch_size
        self._timer = StepTimer(self._stream)
        self._decoder = CvCuda(
            WHOLE_PICTURE,
            limits,
            stream=self._stream,
            max_batch_size=options.max_batch_size,
            threads=options.decoder_threads,
            decode=options.decoding,
        )
        self._planner = Planner(WHOLE_PICTURE, limits)
        of_the_host = {f"{stage.name}_postprocess" for stage in stages}
        self._stages = Stages(
            stages,
            NetworksOnStream(
                {stage.name: open_session(stage, self._stream) for stage in stages},
                stream=self._stream,
                timer=self._timer,
                told=told,
            ),
            self._samples,
            limits=limits,
            timed=lambda step: timed(step) if step in of_the_host else nullcontext(),
            looked_at=looked_at,
            regions_at_once=_REGIONS_AT_ONCE,
        )

    def run(
        self, images: Sequence[Encoded], callers: Sequence[Caller], parameters: Sequence[StageParameters] = ()
    ) -> list[Tensors | Exception]:
        """The answer to each encoded image, or what ``Stages.run`` would raise for it.

        ``callers`` wait for them, ``parameters`` are those of each request, or empty. Pictures that are too large to be
        in the GPU's memory together go one group after the other. Raises what concerns all of them, such as an error of
        the GPU.
        """
        planned, bad = plan_batch(images, self._planner, self._limits)
        results: dict[int, Tensors | Exception] = dict(bad)
        for group in groups(planned, max_items=self._max_batch_size):
            results |= self._run(group, callers, parameters)
        return [results[index] for index in range(len(images))]

    def _run(
        self, group: Sequence[Planned], callers: Sequence[Caller], parameters: Sequence[StageParameters]
    ) -> dict[int, Tensors | Exception]:
        """The results of images whose pictures are in memory together, by their places in the batch."""
        self._timer.start()
        queued = self._decoder.enqueue([item.image for item in group])
        self._timer.mark("decode")
        results: dict[int, Tensors | Exception] = {group[at].index: error for at, error in queued.bad.items()}
        good = [group[at].index for at in queued.good]
        if good:
            own = [parameters[index] for index in good] if parameters else ()
            answers = self._stages.run_together(queued.samples, [callers[index] for index in good], own)
            results |= zip(good, answers, strict=True)
        return results

    def _samples(self, stage: OpenStage) -> Samples[DeviceArray]:
        from_picture = GpuFromPicture(
            stage.definition.pixels(), self._limits, stream=self._stream, side_by_side=stage.gpu_batch
        )
        follows_a_wait = stage.definition.region is not None

        def samples(pictures: Sequence[DeviceArray], quads: Sequence[Quads] | None) -> list[DeviceArray | BadImage]:
            if follows_a_wait:
                # Else the time in which the host chose the regions would be counted.
                self._timer.start()
            found = from_picture.enqueue(pictures, quads)
            self._timer.mark(f"{stage.name}_preprocess")
            return found

        return samples


class NetworksOnStream(Networks[DeviceArray]):
    """Networks on one stream of a GPU, by their stages. What lies side by side in memory goes through them together.

    ``timer`` has the marks of what was queued before; ``told`` hears how long each step took.
    """

    def __init__(
        self,
        sessions: Mapping[str, FreeSession],
        *,
        stream: Stream,
        timer: StepTimer,
        told: Callable[[str, float], None],
    ) -> None:
        self._sessions, self._stream, self._timer, self._told = sessions, stream, timer, told
        self._reading = Reading(stream)

    def run(
        self,
        stage: str,
        samples: Sequence[DeviceArray],
        callers: Sequence[Caller],  # noqa: ARG002 (no request is made for them)
    ) -> list[Tensors | NetworkFailed]:
        """See ``Networks.run``. Waits once for all of them."""
        results: dict[int, Tensors | NetworkFailed] = {}
        queued: list[tuple[list[int], dict[str, DeviceArray]]] = []
        for places in _side_by_side(samples):
            first = samples[places[0]]
            batch = DeviceArray(first.pointer, (len(places), *first.shape), first.dtype, first.stream, first.owner)
            try:
                queued.append((places, self._sessions[stage].enqueue(batch)))
            except Exception as error:  # whatever an engine raises of one size, others may have their outputs
                failed = NetworkFailed(f"the network of stage {stage} failed: {type(error).__name__}")
                results |= dict.fromkeys(places, failed)
        self._timer.mark(f"{stage}_network")
        self._reading.queue([array for _, outputs in queued for array in outputs.values()])
        self._timer.mark(f"{stage}_read")
        self._stream.sync()
        for step, milliseconds in self._timer.milliseconds().items():
            self._told(step, milliseconds)
        values = iter(self._reading.values())
        for places, outputs in queued:
            tensors = {name: next(values) for name in outputs}
            for row, place in enumerate(places):
                results[place] = {name: value[row : row + 1] for name, value in tensors.items()}
        return [results[place] for place in range(len(samples))]


def networks_in(version_folder: Path, options: GpuOptions) -> Callable[[OpenStage, Stream], FreeSession]:
    """What loads the network of a stage on a stream, from the folder of a model's version, as ``open_free_session``."""

    def open_session(stage: OpenStage, stream: Stream) -> FreeSession:
        network = float_network(version_folder / f"{stage.name}.onnx")
        return open_free_session(network, options, stream, definition=stage.definition)

    return open_session


def _side_by_side(samples: Sequence[DeviceArray]) -> Iterator[list[int]]:
    """The places of samples of one size that follow each other in one piece of memory."""
    by_memory: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for place, sample in enumerate(samples):
        by_memory.setdefault((id(sample.owner), sample.shape), []).append(place)
    for places in by_memory.values():
        together = places[:1]
        for place in places[1:]:
            before = samples[together[-1]]
            if samples[place].pointer != before.pointer + before.nbytes:
                yield together
                together = []
            together.append(place)
        yield together
