"""Which subjects a run on clips compares."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from onestream.measure.parity.gathered import Gathered
from onestream.measure.parity.subject import CannotCompare, Refused, Subject
from onestream.measure.parity.video.frames import ComparedClip, Frame, rule_of
from onestream.measure.parity.video.library_readers import MODULES, library_reader
from onestream.measure.parity.video.loaders import Loader
from onestream.measure.parity.video.served import ServedVideo
from onestream.preprocess import Definition, PreprocessError
from onestream.preprocess.backends.base import Device
from onestream.preprocess.cuda.device import driver_visible
from onestream.preprocess.video.clips.frames import VideoBackend
from onestream.serving.pipeline import Pipeline, VideoOptions


class GatheredForFrames(Gathered[Frame]):
    """Subjects that take frames of these clips."""

    libraries, kind = MODULES, "frame"

    def __init__(self, pipeline: Pipeline, stack: ExitStack, clips: Sequence[ComparedClip]) -> None:
        super().__init__(pipeline, stack)
        self.colors = {str(clip.path): str(clip.colors) for clip in clips}
        self._clips, self._rule = clips, rule_of(pipeline.video or VideoOptions())

    def reference(self, definition: Definition, *, name: str = "") -> Subject[Frame]:
        """See ``Gathered.reference``."""
        return Loader(definition, self._rule, backend="reference", limits=self.pipeline.limits, name=name)

    def backends(self) -> None:
        """See ``Gathered.backends``. DALI takes part where it decodes all the clips."""
        places: list[tuple[VideoBackend, Device]] = [("pyav", "cpu"), ("dali", "cpu")]
        if driver_visible():
            places.append(("dali", "gpu"))
        for backend, device in places:
            try:
                loader = Loader(
                    self._definition, self._rule, backend=backend, device=device, limits=self.pipeline.limits
                )
                if backend == "dali":
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
            raise CannotCompare(f"the pipeline {self.pipeline.name} has no video section, so no server streams it")

    def _library(self, name: str) -> Sequence[Subject[Frame]]:
        return [library_reader(name, self._definition)]

    def _own_code(self, where: str) -> Subject[Frame]:
        raise CannotCompare(
            f"--against {where}: a transform takes photos; with --video name {', '.join(MODULES)}, or none"
        )
