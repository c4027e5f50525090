"""Our own video backends as subjects: what the training loader makes, and with *pyav* what a server makes.

DALI is shown and not judged: it interpolates chroma, which at hard edges, as of writing, is far beyond what photos
show.
"""

from __future__ import annotations

from collections.abc import Sequence

from onestream.measure.parity.subject import Observation, Refused
from onestream.measure.parity.video.frames import ClipReader, ComparedClip
from onestream.preprocess import BadSample, Definition, Limits
from onestream.preprocess.backends.base import Device
from onestream.preprocess.definition import PreprocessingStage
from onestream.preprocess.tolerances import Bounds, Source
from onestream.preprocess.video import Clip, ClipMaker, ColorRule
from onestream.preprocess.video.clips.frames import VideoBackend
from onestream.preprocess.video.common import tolerances
from onestream.serving.built.certificate import STAGES


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
        super().__init__(
            name or f"loader: {backend} ({device})", judged=backend != "dali", backend="dali", device="cpu"
        )
        self._rule, self._video_backend, self._video_device = rule, backend, device
        self._stages, self._limits = {stage: definition.stage(stage) for stage in STAGES}, limits
        # What cannot be made is refused before any clip is read.
        self._maker("normalize", Clip()).close()

    def allowed(self, stage: PreprocessingStage, source: Source) -> Bounds | None:  # noqa: ARG002
        """See ``Subject.allowed``; our conversion to RGB is exact at any depth."""
        if self._video_backend != "dali":
            return super().allowed(stage, "plain")
        return tolerances.tolerance("dali-cpu" if self._video_device == "cpu" else "dali-gpu")

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
