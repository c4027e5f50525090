"""A whole cascade by one way, from picture to answer, with the networks that ``onestream build`` wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from onestream.measure.parity.answers import Answers, Right
from onestream.measure.parity.cascade.ways import Way
from onestream.measure.parity.subject import CannotCompare, Observation, Outputs, Photo, Refused, Subject
from onestream.postprocess.kinds import Opening, Postprocess, labels_beside
from onestream.preprocess import first_difference
from onestream.preprocess.geometry import Quads
from onestream.serving.built.versions import parameters_of
from onestream.serving.cascade import SERVED_STAGES, Cascade, ServedStage
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.models.stage_runners import OwnNetworks, Pixels, samples_by
from onestream.serving.models.stages import OpenStage, Stages
from onestream.wire.kinds import STAGES_PARAMETER


class BuiltCascade:
    """What ``onestream build`` wrote of a cascade: its stages, their networks and postprocessings.

    Raises ``CannotCompare`` where it was not built, or from another file.
    """

    def __init__(self, repository: Path, cascade: Cascade) -> None:
        self.name, self._limits = cascade.name, cascade.limits
        self._folder = repository / f"{cascade.name}_fused"
        stages = parameters_of(repository, self._folder.name).get(STAGES_PARAMETER)
        if stages is None:
            raise CannotCompare(
                f"no cascade {self._folder}, whose networks find the regions; onestream build writes it"
            )
        self._stages = SERVED_STAGES.validate_json(stages)
        self._check(cascade)
        self._networks = OwnNetworks({stage.name: self._engine(stage) for stage in self._stages})

    def stages(self, way: Way, looked_at: Callable[[str, Quads], None] = lambda _stage, _quads: None) -> Stages[Pixels]:
        """The cascade by one way; ``looked_at`` is as of ``Stages``."""
        return Stages(
            [OpenStage.of(stage, self._postprocess(stage)) for stage in self._stages],
            self._networks,
            lambda stage: samples_by(way.from_picture(stage.definition.pixels())),
            limits=self._limits,
            looked_at=looked_at,
        )

    def _check(self, cascade: Cascade) -> None:
        built = {stage.name: stage.definition for stage in self._stages}
        if list(built) != list(cascade.stages):
            raise CannotCompare(
                f"{self._folder} has the stages {', '.join(built)}, the pipeline file {', '.join(cascade.stages)}; "
                "run onestream build"
            )
        for name, stage in cascade.stages.items():
            if field := first_difference(built[name], stage.preprocess):
                raise CannotCompare(
                    f"stage {name} was built with another definition than the pipeline file's, first difference: "
                    f"{field}; run onestream build"
                )

    def _engine(self, stage: ServedStage) -> OnnxRuntimeEngine:
        file = self._folder / "1" / f"{stage.name}.onnx"
        if not file.exists():
            raise CannotCompare(f"no {file}, which finds the regions; onestream build writes it")
        return OnnxRuntimeEngine(file, threads=0)

    def _postprocess(self, stage: ServedStage) -> Postprocess:
        folder = self._folder / STAGES_PARAMETER / stage.name
        labels = labels_beside(stage.postprocess, folder)
        return stage.postprocess.open(Opening(stage.definition, labels=labels))


class WholeCascade(Subject[Photo]):
    """Gives the answer of a cascade by one way."""

    def __init__(self, way: Way, built: BuiltCascade) -> None:
        super().__init__(way.name, judged=way.judged, backend=way.backend)
        self._way = way
        self._stages = built.stages(way, self._note)
        self._seen: dict[str, tuple[Observation, dict[str, Quads]]] = {}
        self._regions: dict[str, Quads] = {}

    def observe(self, photo: Photo) -> Observation:
        """The answer."""
        return self._run(photo)[0]

    def regions(self, photo: Photo) -> dict[str, Quads]:
        """The regions that each later stage takes, by its name. Raises ``Refused``."""
        return self._run(photo)[1]

    def close(self) -> None:
        """Close the way."""
        self._way.close()

    def _run(self, photo: Photo) -> tuple[Observation, dict[str, Quads]]:
        # The reference is asked for the regions first, and takes long.
        if photo.name not in self._seen:
            picture = self._way.picture(photo)
            self._regions = {}
            try:
                answer: Outputs = self._stages.run(picture)
            except Exception as error:  # BadImage, or what a library raises
                raise Refused(f"{type(error).__name__}: {error}") from None
            size_hw = (picture.shape[0], picture.shape[1])
            self._seen[photo.name] = (Observation({}, decoded_hw=size_hw, answers={"": answer}), self._regions)
        return self._seen[photo.name]

    def _note(self, stage: str, quads: Quads) -> None:
        self._regions[stage] = quads


class WholeAnswering:
    """See ``Answering``: every subject answers by itself."""

    def __init__(self, cascade: Cascade) -> None:
        *_, last = cascade.stages.values()
        self.answers = Answers(kind=last.postprocess.kind_of_cascade, section="regions")

    def right(self, expected: Observation) -> Right:
        """See ``Answering.right``."""
        assert expected.picture_hw is not None
        return Right({}, expected.answers[""], expected.picture_hw)

    def outputs_for(self, seen: Observation) -> Outputs | None:  # noqa: ARG002
        """No network is asked."""
        return None
