"""The fused form of a built pipeline in this process, without Triton: what workers of other engines run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from onestream.postprocess.options import AnyPostprocess, read_postprocess
from onestream.postprocess.postprocessing import Postprocess, Tensors, labels_beside, open_postprocess
from onestream.preprocess import WHOLE_PICTURE, BadImage, Compiled, Definition, Limits, compile
from onestream.preprocess.headers.reader import Encoded
from onestream.serving.building.triton_config import from_text
from onestream.serving.cascade import SERVED_STAGES, STAGES_PARAMETER, ServedStage
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.errors import BadPipeline
from onestream.serving.models.fused_steps import FusedSteps
from onestream.serving.models.model_files import open_network, read_definition
from onestream.serving.models.stage_runners import OwnNetworks, samples_on_cpu
from onestream.serving.models.stages import OpenStage, Stages

Outcome = Tensors | Exception
"""A pipeline's outputs for one picture, each with a batch dimension of 1, or why there are none."""

_Answer = Callable[[Sequence[Encoded]], Sequence[Outcome]]


class InProcess:
    """A fused model on the CPU, for one thread: the steps that Triton's model runs, with the same bits.

    ``name`` is the model's, ``limits`` are what it refuses, ``batch`` is how many pictures it takes at once.
    """

    def __init__(
        self, folder: Path, *, threads: int | None = None, engine: type[OnnxRuntimeEngine] = OnnxRuntimeEngine
    ) -> None:
        """Load the model in ``folder``, such as ``model_repository/classify_fused``.

        ``threads`` are those of decoding and of the network, by default what the pipeline's file says. ``engine`` runs
        every network. Raises ``BadPipeline`` where the folder holds no built fused model,
        ``onestream.preprocess.StampMismatch`` where its parts do not belong together, and what ``compile`` raises.
        """
        config = from_text(_read(folder / "configs" / "cpu.pbtxt"))
        self._folder, self._engine = folder, engine
        self._parameters = {name: value.string_value for name, value in config.parameters.items()}
        self.name: str = config.name
        self.limits = Limits.model_validate_json(self._parameters["limits"])
        self.batch = max(1, int(config.max_batch_size))
        self._threads = int(self._parameters["threads"]) if threads is None else threads
        self._answer = self._cascade() if STAGES_PARAMETER in self._parameters else self._single()

    def __call__(self, images: Sequence[Encoded]) -> list[Outcome]:
        """The outcome for each encoded picture, in order. Nothing depends on what else is asked for.

        ``onestream.preprocess.BadImage`` is the outcome for one that is refused; other errors are the network's.
        """
        try:
            return list(self._answer(images))
        except Exception as error:  # the engine's exceptions share no public base class
            if len(images) == 1:
                return [error.with_traceback(None)]
            return [outcome for image in images for outcome in self([image])]

    def _single(self) -> _Answer:
        definition = read_definition(
            self._folder,
            Definition.from_json(self._parameters["definition"]),
            self._parameters["definition_digest"],
            model=self.name,
        )
        return FusedSteps(
            self._compiled(definition.pixels()),
            self._network("model.onnx", definition),
            _postprocess(read_postprocess(self._parameters["postprocess"]), definition, self._folder),
        )

    def _cascade(self) -> _Answer:
        decoder = self._compiled(WHOLE_PICTURE)
        served = SERVED_STAGES.validate_json(self._parameters[STAGES_PARAMETER])
        stages = Stages(
            [self._stage(stage) for stage in served],
            OwnNetworks({stage.name: self._network(f"{stage.name}.onnx", stage.definition) for stage in served}),
            lambda stage: samples_on_cpu(stage.definition, self.limits),
            limits=self.limits,
        )

        def answer(images: Sequence[Encoded]) -> list[Outcome]:
            return [
                picture if isinstance(picture, BadImage) else stages.run(picture) for picture in decoder.run(images)
            ]

        return answer

    def _stage(self, served: ServedStage) -> OpenStage:
        folder = self._folder / STAGES_PARAMETER / served.name
        read_definition(folder, served.definition, served.definition_digest, model=self.name)
        return OpenStage.of(served, _postprocess(served.postprocess, served.definition, folder))

    def _compiled(self, definition: Definition) -> Compiled:
        return compile(definition, backend="dali", limits=self.limits, max_batch_size=self.batch, threads=self._threads)

    def _network(self, file: str, definition: Definition) -> OnnxRuntimeEngine:
        path = self._folder / "1" / file
        if not path.is_file():
            raise BadPipeline(f"{self._folder.name} holds no {file}; build it with onestream build")
        return open_network(path, definition, threads=self._threads, model=self.name, engine=self._engine)


def _postprocess(options: AnyPostprocess, definition: Definition, folder: Path) -> Postprocess:
    return open_postprocess(options, definition, labels=labels_beside(options, folder))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise BadPipeline(
            f"{path}: {error.strerror}; expected the folder of a fused model: onestream build writes NAME_fused"
        ) from None
