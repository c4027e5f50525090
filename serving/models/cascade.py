"""The two forms of a cascade, which differ in who runs the networks: this process, or models of their own."""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import triton_python_backend_utils as pb_utils

from onestream.postprocess.options import TextLines
from onestream.postprocess.postprocessing import Tensors
from onestream.postprocess.text.reading_order import reading_order
from onestream.preprocess import WHOLE_PICTURE, BadImage, compile, compile_from_picture
from onestream.serving.cascade import SERVED_STAGES, STAGES_PARAMETER, ServedStage
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.models import deadline
from onestream.serving.models.base import FromImages, Image, has_one_image, run_isolated
from onestream.serving.models.heavy_pictures import unavailable
from onestream.serving.models.stages import NetworkFailed, Networks, Pixels, Stage, Stages
from onestream.wire.refusals import MAY_BE_SENT_AGAIN, QUEUE_IS_FULL, WAITED_TOO_LONG, shortened
from onestream.wire.tensor_names import LEFT_OUT, PIXELS

_QUEUE_FULL = (QUEUE_IS_FULL, WAITED_TOO_LONG)
"""Triton 2.51 tells a caller inside the server no code but INTERNAL, so these words have to do."""

_CHUNK = 64
"""Regions whose pixels are in memory at once: 64 of 224x224 take 10 MB."""


class _Cascade(FromImages):
    """``image`` to what the last stage gives of every region."""

    def read_stamps(self) -> None:
        """See ``Adapter.read_stamps``: every stage has its own."""
        self.served = SERVED_STAGES.validate_json(self.parameters[STAGES_PARAMETER])
        self.stage_folders = {stage.name: self.folder / STAGES_PARAMETER / stage.name for stage in self.served}
        for stage in self.served:
            self.stamped(self.stage_folders[stage.name], stage.definition, stage.definition_digest)

    def prepare(self) -> None:
        """Load or find the networks, and compile the definitions."""
        self._networks = self.open_networks()
        self.open_on_cpu()

    @abstractmethod
    def open_networks(self) -> Networks:
        """What runs the networks; threads may share it."""

    def open_work(self) -> Callable[[Sequence[Any]], list[Any]]:
        """See ``FromImages.open_work``."""
        decoder = compile(
            WHOLE_PICTURE,
            backend="dali",
            limits=self.limits,
            max_batch_size=self.max_batch_size,
            threads=int(self.parameters["threads"]),
        )
        stages = Stages(
            decoder,
            [self._stage(stage) for stage in self.served],
            self._networks,
            limits=self.limits,
            chunk=_CHUNK,
            timed=self.timed,
            counted=lambda stage, regions: self.metrics.count("onestream_regions_total", regions, stage=stage),
            alive=deadline.extend,
        )
        return partial(self._responses, stages)

    def _stage(self, stage: ServedStage) -> Stage:
        folder = self.stage_folders[stage.name]
        return Stage(
            stage.name,
            stage.definition,
            compile_from_picture(stage.definition.pixels(), backend="dali", limits=self.limits),
            self.postprocess_of(stage.postprocess, stage.definition, folder),
            stage.answer,
            stage.postprocess.keeps,
            reading_order if isinstance(stage.postprocess, TextLines) else None,
        )

    def answer(self, requests: Sequence[Any]) -> list[Any]:
        """Answer every picture; a bad one is an error of its own request only."""
        return self.answer_on_cpu(requests)

    def _responses(self, stages: Stages, requests: Sequence[Any]) -> list[Any]:
        began, single = time.monotonic(), [request for request in requests if has_one_image(request)]

        def is_wanted(index: int) -> bool:
            request = single[index]
            # In microseconds, 0 for none.
            timeout_us = request.timeout()
            return not (request.is_cancelled() or (timeout_us and (time.monotonic() - began) * 1e6 > timeout_us))

        def run(images: list[Image]) -> list[Any]:
            return list(stages.run(images, is_wanted))

        answers = run_isolated(run, requests)
        return [self._response(request, answer) for request, answer in zip(requests, answers, strict=True)]

    def _response(self, request: Any, answer: Tensors | BadImage | NetworkFailed | None) -> Any:
        if isinstance(answer, BadImage):
            return self.refuse(request, answer)
        if isinstance(answer, NetworkFailed):
            if answer.is_overload:
                return unavailable(f"{answer}{MAY_BE_SENT_AGAIN}")
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(answer), pb_utils.TritonError.INTERNAL))
        if answer is None:
            return unavailable(WAITED_TOO_LONG)
        if left_out := int(answer[LEFT_OUT][0, 0]):
            self.metrics.count("onestream_regions_left_out_total", left_out)
        return self.respond(answer)


class CascadeFused(_Cascade):
    """All stages in one process."""

    def open_networks(self) -> Networks:
        """The networks beside the model."""
        return _OwnNetworks(
            {stage.name: self.load_engine(f"{stage.name}.onnx", stage.definition) for stage in self.served}
        )


class Cascade(_Cascade):
    """All stages but their networks, which are models of their own and are asked inside the server."""

    def open_networks(self) -> Networks:
        """The models ``NAME_STAGE_model``."""
        models = {stage.name: f"{self.parameters['pipeline']}_{stage.name}_model" for stage in self.served}
        outputs = {stage.name: stage.network_outputs for stage in self.served}
        # They wait most of the time: one for each instance of a network, and as many that are on their way.
        self._askers = ThreadPoolExecutor(2 * len(os.sched_getaffinity(0)), "ask")
        return _OtherModels(models, outputs, self._askers)

    def finalize(self) -> None:
        """Finish what was begun."""
        super().finalize()
        self._askers.shutdown()


class _OwnNetworks(Networks):
    def __init__(self, engines: dict[str, OnnxRuntimeEngine]) -> None:
        self._engines = engines

    def run(self, stage: str, samples: Sequence[Pixels]) -> list[Tensors | NetworkFailed]:
        # Batches of regions do not pay on a CPU: one region's activations fit the cache.
        return [self._run(stage, sample) for sample in samples]

    def _run(self, stage: str, sample: Pixels) -> Tensors | NetworkFailed:
        try:
            return self._engines[stage].run(sample[None])
        except Exception as error:  # ONNX Runtime's exceptions share no public base class
            return NetworkFailed(f"the network of stage {stage} failed: {type(error).__name__}")


class _OtherModels(Networks):
    def __init__(self, models: dict[str, str], outputs: dict[str, tuple[str, ...]], askers: ThreadPoolExecutor) -> None:
        self._models, self._outputs, self._askers = models, outputs, askers

    def run(self, stage: str, samples: Sequence[Pixels]) -> list[Tensors | NetworkFailed]:
        return list(self._askers.map(partial(self._ask, stage), samples))

    def _ask(self, stage: str, sample: Pixels) -> Tensors | NetworkFailed:
        request = pb_utils.InferenceRequest(
            model_name=self._models[stage],
            requested_output_names=list(self._outputs[stage]),
            inputs=[pb_utils.Tensor(PIXELS, sample[None])],
            # A network on a GPU would leave its outputs there.
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU),
        )
        response = request.exec()
        if response.has_error():
            # The lines after the first may be a stack trace.
            reason = shortened(response.error().message().partition("\n")[0])
            return NetworkFailed(reason, is_overload=any(text in reason for text in _QUEUE_FULL))
        return {name: pb_utils.get_output_tensor_by_name(response, name).as_numpy() for name in self._outputs[stage]}
