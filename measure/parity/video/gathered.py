"""Which subjects a run on clips compares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from onestream.client import Client, OnestreamError
from onestream.client.video import FrameResult
from onestream.measure.parity.gathered import Gathered
from onestream.measure.parity.served import ServedModels
from onestream.measure.parity.subject import CannotCompare, Observation, Refused, Subject
from onestream.measure.parity.video.frames import ClipReader, ComparedClip, Frame, rule_of
from onestream.measure.parity.video.library_readers import MODULES, library_reader
from onestream.preprocess import BadSample, Definition, Limits, PreprocessError
from onestream.preprocess.backends.base import ON_CPU, REFERENCE, Device
from onestream.preprocess.cuda.device import driver_visible
from onestream.preprocess.definition import PreprocessingStage
from onestream.preprocess.tolerances import Bounds, Source
from onestream.preprocess.video import Clip, ClipMaker, ColorRule
from onestream.preprocess.video.clips.frames import VideoBackend
from onestream.preprocess.video.clips.maker import VIDEO_BACKENDS
from onestream.preprocess.video.common import tolerances
from onestream.serving.built.certificate import STAGES
from onestream.serving.pipeline import Pipeline
from onestream.serving.stream_options import VideoOptions
from onestream.wire.kinds import KINDS


class ServedVideo(ClipReader):
    """Streams clips to a server. It shows the pipeline's answer, and the network's outputs where that is raw.

    ``address`` is host:port of its gRPC service. ``on_problem`` is told where the server makes RGB otherwise than the
    pipeline file says. Raises ``NotServed``.
    """

    def __init__(self, pipeline: Pipeline, address: str, *, on_problem: Callable[[str], None]) -> None:
        super().__init__("server", judged=True)
        self._pipeline, self._model, self._on_problem = pipeline, f"{pipeline.name}_video", on_problem
        with ServedModels(address, [self._model]) as served:
            self.digests, self.name = served.digests, served.title
        self._client = Client(address)

    def read(self, clip: ComparedClip) -> Sequence[Observation]:
        """See ``ClipReader.read``."""
        results: dict[int, FrameResult] = {}
        try:
            with self._client.stream(clip.path, pipeline=self._pipeline.name, mode="block") as stream:
                for result in stream:
                    results[result.frame_index] = result
                    if result.frame_index >= clip.numbers[-1]:
                        break
                color = stream.color
        except OnestreamError as error:
            raise Refused(str(error)) from None
        if color is not None and (color.matrix, color.range) != (clip.colors.matrix, clip.colors.range):
            self._on_problem(
                f"the server makes RGB of {clip.path} by {color}, the pipeline file by {clip.colors}; "
                "run onestream build"
            )
        missing = [number for number in clip.numbers if number not in results]
        if missing:
            raise Refused(f"the server gives no result for frame {missing[0]}")
        return [self._observation(results[number]) for number in clip.numbers]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _observation(self, result: FrameResult) -> Observation:
        answer = {name: tensor[None] for name, tensor in result.tensors.items()}
        is_outputs = not KINDS[self._pipeline.postprocess.kind].outputs
        return Observation({}, outputs=answer if is_outputs else None, answers={self._model: answer} if answer else {})


class Loader(ClipReader):
    """One video backend, all four stages. Raises as ``ClipMaker`` does."""

    def __init__(
        self,
        definition: Definition,
        rule: ColorRule,
        *,
        backend: VideoBackend,
        device: Device = "cpu",
        limits: Limits | None = None,
        name: str = "",
    ) -> None:
        # The resize of all of them is the compiled one, whose entries in the table are DALI's on a CPU.
        self._row = VIDEO_BACKENDS[backend]
        super().__init__(
            name or f"loader: {backend} ({device})", judged=not self._row.own_colors, backend=ON_CPU, device="cpu"
        )
        self._rule, self._video_backend, self._video_device = rule, backend, device
        self._stages, self._limits = {stage: definition.stage(stage) for stage in STAGES}, limits
        # What cannot be made is refused before any clip is read.
        self._maker("normalize", Clip()).close()

    def allowed(self, stage: PreprocessingStage, source: Source) -> Bounds | None:  # noqa: ARG002
        """See ``Subject.allowed``; our conversion to RGB is exact at any depth."""
        own = self._row.own_colors
        return tolerances.tolerance(own[self._video_device]) if own else super().allowed(stage, "plain")

    def read(self, clip: ComparedClip) -> Sequence[Observation]:
        """See ``ClipReader.read``."""
        samples = {}
        for stage in STAGES:
            maker = self._maker(stage, Clip(frames=clip.numbers))
            try:
                samples[stage] = maker.make(clip.path)
            except BadSample as error:
                raise Refused(str(error).removeprefix(f"{clip.path}: ")) from None
            finally:
                maker.close()
        return [
            Observation({stage: frames[place] for stage, frames in samples.items()})
            for place in range(len(clip.numbers))
        ]

    def _maker(self, stage: PreprocessingStage, frames: Clip) -> ClipMaker:
        return ClipMaker(
            self._stages[stage],
            frames,
            backend=self._video_backend,
            device=self._video_device,
            color=self._rule,
            limits=self._limits,
        )


class GatheredForFrames(Gathered[Frame]):
    """Subjects that take frames of these clips."""

    libraries, kind = MODULES, "frame"

    def __init__(self, pipeline: Pipeline, stack: ExitStack, clips: Sequence[ComparedClip]) -> None:
        super().__init__(pipeline, stack)
        self.colors = {str(clip.path): str(clip.colors) for clip in clips}
        self._clips, self._rule = clips, rule_of(pipeline.video or VideoOptions())

    def reference(self, definition: Definition, *, name: str = "") -> Subject[Frame]:
        """See ``Gathered.reference``."""
        return Loader(definition, self._rule, backend=REFERENCE, limits=self.pipeline.limits, name=name)

    def backends(self) -> None:
        """See ``Gathered.backends``. DALI takes part where it decodes all the clips."""
        gpu = driver_visible()
        rows = ((name, row) for name, row in VIDEO_BACKENDS.items() if not row.literally)
        for backend, row, device in ((*one, device) for one in rows for device in one[1].devices):
            if device == "gpu" and not gpu:
                continue
            try:
                loader = Loader(
                    self._definition, self._rule, backend=backend, device=device, limits=self.pipeline.limits
                )
                if row.own_colors:
                    for clip in self._clips:
                        loader.read(clip)
            except (PreprocessError, Refused, RuntimeError) as error:  # DALI's own on a GPU that cannot be used
                self.not_compared[f"loader: {backend} ({device})"] = str(error)
            else:
                self._add(loader)

    def server(self, address: str) -> None:
        """See ``Gathered.server``."""
        self._check_streams()
        served = ServedVideo(self.pipeline, address, on_problem=self.problems.append)
        self._add(served)
        self._check_digests(served.digests)

    @property
    def served_models(self) -> list[str]:
        """The model of streams, and the network that it asks."""
        self._check_streams()
        return [f"{self.pipeline.name}_video", f"{self.pipeline.name}_model"]

    def _check_streams(self) -> None:
        if self.pipeline.video is None:
            raise CannotCompare(
                f"the pipeline {self.pipeline.name} has no video section, so no server streams it: add the line "
                f"`video: {{}}` to its file, build it, and `onestream models load {self.pipeline.name}`"
            )

    def _library(self, name: str) -> Sequence[Subject[Frame]]:
        return [library_reader(name, self._definition)]

    def _own_code(self, where: str) -> Subject[Frame]:
        raise CannotCompare(
            f"--against {where}: a transform takes photos; with --video name {', '.join(MODULES)}, or none"
        )
