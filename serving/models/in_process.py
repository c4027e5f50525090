"""The fused form of a built pipeline in this process, without Triton: what workers of other engines run."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from onestream.postprocess.kinds import (
    AnyPostprocess,
    Postprocess,
    Tensors,
    labels_beside,
    open_postprocess,
    read_postprocess,
    without_stages,
)
from onestream.preprocess import WHOLE_PICTURE, BadImage, Compiled, Definition, Limits, compile
from onestream.preprocess.backends.base import ON_CPU
from onestream.preprocess.cuda.device import Device as Gpu
from onestream.preprocess.cuda.device import open_device, usable
from onestream.preprocess.headers.reader import Encoded
from onestream.serving.built import here
from onestream.serving.built.triton_config import CONFIG_FOR, Device, from_text
from onestream.serving.cascade import SERVED_STAGES, STAGES_PARAMETER, ServedStage
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.errors import BadPipeline
from onestream.serving.models.callers import ANYBODY
from onestream.serving.models.fused_steps import FusedSteps
from onestream.serving.models.model_files import open_network, read_definition
from onestream.serving.models.stage_runners import OwnNetworks, samples_on_cpu
from onestream.serving.models.stages import OpenStage, Stages
from onestream.serving.pipeline import GpuOptions
from onestream.wire.kinds import KIND_PARAMETER

Outcome = Tensors | Exception
"""A pipeline's outputs for one picture, each with a batch dimension of 1, or why there are none."""

_Answer = Callable[[Sequence[Encoded]], Sequence[Outcome]]


class GpuFailed(RuntimeError):
    """The GPU answers this process no more; another process may use it. The message names the machine."""


class InProcess:
    """A fused model on the CPU or on a GPU, for one thread at a time: the steps of Triton's model, with the same bits.

    ``name`` is the model's, ``kind`` that of its answers, None where it says none, ``limits`` are what it refuses,
    ``batch`` is how many pictures it takes at once.
    """

    def __init__(
        self,
        folder: Path,
        *,
        device: Device = "cpu",
        threads: int | None = None,
        engine: type[OnnxRuntimeEngine] = OnnxRuntimeEngine,
    ) -> None:
        """Load the model in ``folder``, such as ``model_repository/classify_fused``.

        On a ``device`` *gpu*, the first one that this process sees, the pipeline's file says under ``serving.gpu`` what
        decodes and what runs the network, for which a plan of TensorRT may have to be built first. On a *cpu*
        ``engine`` runs every network. ``threads`` are those of decoding, on a CPU of the network, too; by default what
        the file says.

        Raises ``BadPipeline`` where the folder holds no fused model that is built for the device,
        ``onestream.preprocess.StampMismatch`` where its parts do not belong together, what ``compile`` raises, and for
        a GPU what ``open_device`` and ``onestream.serving.engine.open_engine`` raise. Warns where a network in int8
        was built on another processor and gains nothing on this one.
        """
        config = fused_config(folder, device)
        self._folder, self._engine = folder, engine
        self._parameters = {name: value.string_value for name, value in config.parameters.items()}
        self.name: str = config.name
        self.kind = self._parameters.get(KIND_PARAMETER)
        self.limits = Limits.model_validate_json(self._parameters["limits"])
        self.batch = max(1, int(config.max_batch_size))
        is_cascade = STAGES_PARAMETER in self._parameters
        if device == "gpu":
            gpu, options = open_device(), self._gpu_options(threads)
            self._answer = _supervised(
                gpu, self._cascade_on_gpu(gpu, options) if is_cascade else self._single_on_gpu(gpu, options)
            )
        else:
            self._threads = int(self._parameters["threads"]) if threads is None else threads
            self._answer = self._cascade() if is_cascade else self._single()

    def __call__(self, images: Sequence[Encoded]) -> list[Outcome]:
        """The outcome for each encoded picture, in order. Nothing depends on what else is asked for, but for the last
        digits of a network's sums on a GPU.

        ``onestream.preprocess.BadImage`` is the outcome for one that is refused; other errors are the network's. Raises
        ``GpuFailed``, after which this process has no GPU.
        """
        try:
            return list(self._answer(images))
        except GpuFailed:
            raise
        except Exception as error:  # the engine's exceptions share no public base class
            if len(images) == 1:
                return [error.with_traceback(None)]
            return [outcome for image in images for outcome in self([image])]

    def _single(self) -> _Answer:
        definition = self._definition()
        return FusedSteps(
            self._compiled(definition.pixels()),
            self._network("model.onnx", definition),
            self._alone(definition),
        )

    def _alone(self, definition: Definition, *, has_tail: bool = False) -> Postprocess:
        options = read_postprocess(self._parameters["postprocess"])
        return without_stages(options, _postprocess(options, definition, self._folder, has_tail=has_tail))

    def _cascade(self) -> _Answer:
        decoder, served = self._compiled(WHOLE_PICTURE), self._served()
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

    def _single_on_gpu(self, gpu: Gpu, options: GpuOptions) -> _Answer:
        # What works on a GPU imports its libraries, which a machine without one need not have.
        from onestream.serving.models.gpu_steps import GpuSteps, open_fused_engine
        from onestream.serving.models.one_stream import OneStream

        definition, postprocess = self._definition(), self._parameters["postprocess"]
        engine = open_fused_engine(self._folder / "1", postprocess, options=options, device=gpu, definition=definition)
        return GpuSteps(
            OneStream(definition, self.limits, engine, device=gpu, options=options),
            self._alone(definition, has_tail=True),
        )

    def _cascade_on_gpu(self, gpu: Gpu, options: GpuOptions) -> _Answer:
        from onestream.serving.models.cascade_stream import CascadeStream, networks_in

        stream = CascadeStream(
            [self._stage(stage) for stage in self._served()],
            networks_in(self._folder / "1", options),
            self.limits,
            device=gpu,
            options=options,
        )
        return lambda images: stream.run(images, [ANYBODY] * len(images))

    def _gpu_options(self, threads: int | None) -> GpuOptions:
        options = GpuOptions.model_validate_json(self._parameters["gpu"])
        return options if threads is None else options.model_copy(update={"decode_threads": threads})

    def _definition(self) -> Definition:
        return read_definition(
            self._folder,
            Definition.from_json(self._parameters["definition"]),
            self._parameters["definition_digest"],
            model=self.name,
        )

    def _served(self) -> tuple[ServedStage, ...]:
        return SERVED_STAGES.validate_json(self._parameters[STAGES_PARAMETER])

    def _stage(self, served: ServedStage) -> OpenStage:
        folder = self._folder / STAGES_PARAMETER / served.name
        read_definition(folder, served.definition, served.definition_digest, model=self.name)
        return OpenStage.of(served, _postprocess(served.postprocess, served.definition, folder))

    def _compiled(self, definition: Definition) -> Compiled:
        return compile(definition, backend=ON_CPU, limits=self.limits, max_batch_size=self.batch, threads=self._threads)

    def _network(self, file: str, definition: Definition) -> OnnxRuntimeEngine:
        path = self._folder / "1" / file
        if not path.is_file():
            raise BadPipeline(f"{self._folder.name} holds no {file}; build it with onestream build")
        opened = open_network(path, definition, threads=self._threads, model=self.name, engine=self._engine)
        if slower := here.warning(path, opened.quantization, threads=self._threads):
            warnings.warn(f"model {self.name}: {slower}", stacklevel=2)
        return opened


def fused_config(folder: Path, device: Device) -> ModelConfig:
    """The configuration of the fused model in a folder. Raises ``BadPipeline`` where none is built for the device."""
    config = from_text(_read(folder / CONFIG_FOR[device]))
    if device == "gpu" and not any(group.kind == ModelInstanceGroup.KIND_GPU for group in config.instance_group):
        raise BadPipeline(
            f"{config.name} is built for CPUs alone: "
            + (
                "a cascade is on a GPU with serving.gpu.engine: onnxruntime"
                if STAGES_PARAMETER in config.parameters
                else "its network's pixels have a size of their own for each picture, and on a GPU they have one"
            )
        )
    return config


def _supervised(gpu: Gpu, answer: _Answer) -> _Answer:
    """The same, which raises ``GpuFailed`` where the GPU is lost to this process, and not a picture's own error."""

    def supervised(images: Sequence[Encoded]) -> Sequence[Outcome]:
        try:
            # Engines such as Ray load models in one thread and ask them in another.
            gpu.enter()
            return answer(images)
        except Exception as error:  # whatever a driver raises
            if usable(gpu):
                raise
            raise GpuFailed(f"the GPU of {platform.node()} failed: {type(error).__name__}: {error}") from None

    return supervised


def _postprocess(
    options: AnyPostprocess, definition: Definition, folder: Path, *, has_tail: bool = False
) -> Postprocess:
    return open_postprocess(options, definition, labels=labels_beside(options, folder), has_tail=has_tail)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise BadPipeline(
            f"{path}: {error.strerror}; expected the folder of a fused model: onestream build writes NAME_fused"
        ) from None
