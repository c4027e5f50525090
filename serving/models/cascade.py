"""The two forms of a cascade, which differ in who runs the networks: this process, or models of their own."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import triton_python_backend_utils as pb_utils

from onestream.postprocess.postprocessing import Tensors
from onestream.preprocess import WHOLE_PICTURE, BadImage, Compiled, compile
from onestream.serving.cascade import SERVED_STAGES, STAGES_PARAMETER, ServedStage
from onestream.serving.models import deadline
from onestream.serving.models.base import Adapter, FromImages, run_isolated
from onestream.serving.models.callers import Caller, NobodyWaits, RequestCaller
from onestream.serving.models.heavy_pictures import Work, unavailable
from onestream.serving.models.stages import NetworkFailed, Networks, OpenStage, OwnNetworks, Pixels, Stages
from onestream.wire.refusals import QUEUE_FULL, WAITED_TOO_LONG, shortened
from onestream.wire.tensor_names import LEFT_OUT, PIXELS

_MOST_ASKERS = 16


class Staged(Adapter):
    """Has stages, each with a stamp of its own."""

    def read_stamps(self) -> None:
        """See ``Adapter.read_stamps``: every stage has its own."""
        self.served = SERVED_STAGES.validate_json(self.parameters[STAGES_PARAMETER])
        self.stage_folders = {stage.name: self.folder / STAGES_PARAMETER / stage.name for stage in self.served}
        for stage in self.served:
            self.stamped(self.stage_folders[stage.name], stage.definition, stage.definition_digest)

    def open_stages(self, networks: Networks) -> Stages:
        """The stages, for one thread."""
        return Stages(
            [self._stage(stage) for stage in self.served],
            networks,
            limits=self.limits,
            timed=self.timed,
            looked_at=lambda stage, quads: self.metrics.count("onestream_regions_total", len(quads), stage=stage),
        )

    def _stage(self, stage: ServedStage) -> OpenStage:
        postprocess = self.postprocess_of(stage.postprocess, stage.definition, self.stage_folders[stage.name])
        return OpenStage.open(stage, postprocess, limits=self.limits)

    def count_left_out(self, answer: Tensors) -> None:
        """Count the regions of a picture that the limits left out."""
        if left_out := int(answer[LEFT_OUT][0, 0]):
            self.metrics.count("onestream_regions_left_out_total", left_out)

    def other_models(self) -> OtherModels:
        """The networks as models of their own, ``NAME_STAGE_model``."""
        return OtherModels(self.parameters["pipeline"], {stage.name: stage.network_outputs for stage in self.served})


class _Form(Staged, FromImages):
    """``image`` to what the last stage gives of every region."""

    def prepare(self) -> None:
        """Load or find the networks, and compile the definitions."""
        self.networks = self.open_networks()
        self.open_on_cpu()

    @abstractmethod
    def open_networks(self) -> Networks:
        """What runs the networks; threads may share it."""

    def open_work(self) -> Work:
        """See ``FromImages.open_work``."""
        decoder = compile(
            WHOLE_PICTURE,
            backend="dali",
            limits=self.limits,
            max_batch_size=self.max_batch_size,
            threads=int(self.parameters["threads"]),
        )
        return partial(self._responses, decoder, self.open_stages(self.networks))

    def answer(self, requests: Sequence[Any]) -> list[Any]:
        """Answer every picture; a bad one is an error of its own request only."""
        return self.answer_on_cpu(requests)

    def finalize(self) -> None:
        """Finish what was begun."""
        super().finalize()
        self.networks.close()

    def _responses(self, decoder: Compiled, stages: Stages, callers: Sequence[RequestCaller]) -> list[Any]:
        with self.timed("decode"):
            pictures = run_isolated(lambda images: list(decoder.run(images)), [caller.request for caller in callers])
        return [
            self._response(caller, partial(stages.run, picture, caller))
            if not isinstance(picture, BadImage)
            else self.refuse(caller.request, picture)
            for caller, picture in zip(callers, pictures, strict=True)
        ]

    def _response(self, caller: RequestCaller, run: Callable[[], Tensors]) -> Any:
        try:
            answer = run()
        except BadImage as error:
            return self.refuse(caller.request, error.as_result())
        except NobodyWaits:
            return unavailable(WAITED_TOO_LONG)
        except NetworkFailed as error:
            return unavailable(str(error)) if error.is_overload else _failed(str(error))
        except Exception as error:  # whatever a stage raises, the other pictures have their answers
            pb_utils.Logger.log_error(f"{self.name}: a picture failed: {type(error).__name__}: {error}")
            return _failed(f"a picture failed: {type(error).__name__}")
        self.count_left_out(answer)
        return self.respond(answer)


def _failed(reason: str) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(reason, pb_utils.TritonError.INTERNAL))


class CascadeFused(_Form):
    """All stages in one process."""

    def open_networks(self) -> Networks:
        """The networks beside the model."""
        return OwnNetworks(
            {stage.name: self.load_engine(f"{stage.name}.onnx", stage.definition) for stage in self.served}
        )


class Cascade(_Form):
    """All stages but their networks, which are models of their own and are asked inside the server."""

    def open_networks(self) -> Networks:
        """The models ``NAME_STAGE_model``."""
        return self.other_models()


class OtherModels(Networks):
    """Models of Triton's, asked inside the server. ``outputs`` are the names of each network's, by its stage."""

    def __init__(self, pipeline: str, outputs: Mapping[str, Sequence[str]]) -> None:
        self._pipeline, self._outputs = pipeline, outputs
        # They wait most of the time: one for each instance of a network, and as many that are on their way; but one of
        # these models for each core must not fill the networks' queues, which have room for 32 for each core.
        self._askers = ThreadPoolExecutor(min(2 * len(os.sched_getaffinity(0)), _MOST_ASKERS), "ask")

    def run(self, stage: str, samples: Sequence[Pixels], caller: Caller) -> list[Tensors]:
        """See ``Networks.run``: all at once, so that the instances of a network share them."""
        answers = []
        for answer in self._askers.map(partial(self._ask, stage, caller), samples):
            deadline.extend()
            answers.append(answer)
        return answers

    def close(self) -> None:
        """End the threads that ask."""
        self._askers.shutdown()

    def _ask(self, stage: str, caller: Caller, sample: Pixels) -> Tensors:
        request = pb_utils.InferenceRequest(
            model_name=f"{self._pipeline}_{stage}_model",
            requested_output_names=list(self._outputs[stage]),
            inputs=[pb_utils.Tensor(PIXELS, sample[None])],
            # A network on a GPU would leave its outputs there.
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU),
            **caller.handed_on(),
        )
        response = request.exec()
        if response.has_error():
            # The lines after the first may be a stack trace.
            reason = shortened(response.error().message().partition("\n")[0])
            overload = next((text for text in QUEUE_FULL if text in reason), None)
            raise NetworkFailed(overload or reason, is_overload=overload is not None)
        return {name: pb_utils.get_output_tensor_by_name(response, name).as_numpy() for name in self._outputs[stage]}
