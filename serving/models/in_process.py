"""The fused form of a built pipeline in this process, without Triton: what workers of other engines run."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from onestream.postprocess.kinds import Tensors
from onestream.preprocess import BadImage
from onestream.preprocess.cuda.device import Device as Gpu
from onestream.preprocess.cuda.device import open_device, usable
from onestream.preprocess.headers.reader import Encoded
from onestream.serving.built.triton_config import CONFIG_FOR, Device, from_text
from onestream.serving.built.versions import is_ensemble
from onestream.serving.engine import CpuEngine
from onestream.serving.errors import BadPipeline
from onestream.serving.models.deadline import ANYBODY
from onestream.serving.models.loaded import FusedSteps, LoadedModel
from onestream.wire.kinds import STAGES_PARAMETER
from onestream.wire.tensor_names import IMAGE

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
        engine: type[CpuEngine] | None = None,
    ) -> None:
        """Load the model in ``folder``, such as ``model_repository/classify_fused``.

        On a ``device`` *gpu*, the first one that this process sees, the pipeline's file says under ``serving.gpu`` what
        decodes and what runs the network, for which a plan of TensorRT may have to be built first. On a *cpu*
        ``engine`` runs every network, by default the file's. ``threads`` are those of decoding, on a CPU of the
        network, too; by default what the file says.

        Raises ``BadPipeline`` where the folder holds no fused model that is built for the device,
        ``onestream.preprocess.StampMismatch`` where its parts do not belong together, what ``compile`` raises, and for
        a GPU what ``open_device`` and ``onestream.serving.engine.open_engine`` raise. Warns where a network in int8
        was built on another processor and gains nothing on this one.
        """
        config = fused_config(folder, device)
        if others := [one.name for one in config.input if one.name != IMAGE]:
            raise BadPipeline(
                f"{config.name} takes {', '.join(others)} with each picture, by network_inputs; a client of a server "
                "gives these, and what runs a model in its own process gives pictures alone"
            )
        model = LoadedModel(
            folder,
            {name: value.string_value for name, value in config.parameters.items()},
            name=config.name,
            batch=config.max_batch_size,
            threads=threads,
            engine=engine,
            warn=partial(warnings.warn, stacklevel=4),
        )
        self.name, self.kind, self.limits, self.batch = model.name, model.kind, model.limits, model.batch
        if device == "gpu":
            gpu = open_device()
            self._answer = _supervised(gpu, (_cascade_on_gpu if model.served else _single_on_gpu)(model, gpu))
        elif model.served:
            self._answer = _cascade(model)
        else:
            self._answer = FusedSteps(model.pixels(), model.network(), model.postprocess())

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


def _cascade(model: LoadedModel) -> _Answer:
    decoder, stages = model.pixels(), model.open_stages(model.own_networks())

    def answer(images: Sequence[Encoded]) -> list[Outcome]:
        return [picture if isinstance(picture, BadImage) else stages.run(picture) for picture in decoder.run(images)]

    return answer


def _single_on_gpu(model: LoadedModel, gpu: Gpu) -> _Answer:
    # What works on a GPU imports its libraries, which a machine without one need not have.
    from onestream.serving.models.one_stream import GpuSteps, OneStream, open_fused_engine

    engine = open_fused_engine(model, gpu)
    stream = OneStream(model.definition, model.limits, engine, device=gpu, options=model.gpu_options)
    return GpuSteps(stream, model.postprocess(has_tail=True))


def _cascade_on_gpu(model: LoadedModel, gpu: Gpu) -> _Answer:
    from onestream.serving.models.cascade_stream import CascadeStream, networks_in

    options = model.gpu_options
    networks = networks_in(model.version_folder, options)
    stream = CascadeStream(model.stages(), networks, model.limits, device=gpu, options=options)
    return lambda images: stream.run(images, [ANYBODY] * len(images))


def fused_config(folder: Path, device: Device) -> ModelConfig:
    """The configuration of the fused model in a folder. Raises ``BadPipeline`` where none is built for the device."""
    if is_ensemble(folder.parent, folder.name):
        raise BadPipeline(
            f"{folder.name} has no process of its own, since serving.forms leaves out fused; add it and build"
        )
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


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise BadPipeline(
            f"{path}: {error.strerror}; expected the folder of a fused model: onestream build writes NAME_fused"
        ) from None
