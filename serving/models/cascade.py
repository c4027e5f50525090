"""The two forms of a cascade, which differ in who runs the networks: this process, or models of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any

import triton_python_backend_utils as pb_utils

from onestream.postprocess.kinds import Tensors
from onestream.postprocess.parameters import Parameters, RequestParameter
from onestream.preprocess import BadImage, Compiled
from onestream.preprocess.geometry import Quads
from onestream.serving.errors import NetworkFailed
from onestream.serving.models import deadline
from onestream.serving.models.base import Adapter, FromImages
from onestream.serving.models.deadline import Caller, NobodyWaits, RequestCaller
from onestream.serving.models.heavy_pictures import Work, unavailable
from onestream.serving.models.stage_runners import Networks, Pixels
from onestream.serving.models.stages import HeavyRegions, StageParameters, Stages
from onestream.wire.refusals import QUEUE_FULL, WAITED_TOO_LONG, shortened
from onestream.wire.tensor_names import LEFT_OUT, PIXELS

_MOST_ASKERS = 16
HEAVY_SAMPLE_PIXELS = 1_000_000
"""Of one picture's samples for a network, above which others are answered first: as many as 65 short lines of text
have, which are read in some 2 seconds of a core. Such a picture is begun anew: what was done of it is a small part."""


class Staged(Adapter):
    """Has stages, each with parameters of its own."""

    def open_stages(self, networks: Networks[Pixels], **options: int) -> Stages[Pixels]:
        """The stages on the CPU, for one thread, with these ``options`` of theirs."""
        return self.model.open_stages(networks, timed=self.timed, looked_at=self.count_regions, **options)

    @cached_property
    def request_parameters(self) -> dict[str, RequestParameter]:
        """See ``Adapter.request_parameters``: named as the answer's tensors, ``STAGE_NAME`` but of the last stage."""
        return {name: parameter for name, (_, parameter) in self._staged_parameters.items()}

    def by_stage(self, parameters: Parameters) -> StageParameters:
        """The parameters of a request by the stages that take them, under their own names."""
        found: dict[str, dict[str, float]] = {}
        for name, value in parameters.items():
            stage, parameter = self._staged_parameters[name]
            found.setdefault(stage, {})[parameter.name] = value
        return found

    @cached_property
    def _staged_parameters(self) -> dict[str, tuple[str, RequestParameter]]:
        last = self.model.served[-1].name
        return {
            parameter.name if stage.name == last else f"{stage.name}_{parameter.name}": (stage.name, parameter)
            for stage in self.model.served
            for parameter in stage.postprocess.request_parameters
        }

    def count_regions(self, stage: str, quads: Quads) -> None:
        """Count the regions that a stage has worked on."""
        self.metrics.count("onestream_regions_total", len(quads), stage=stage)

    def other_models(self) -> OtherModels:
        """The networks as models of their own, ``NAME_STAGE_model``."""
        return OtherModels(
            self.model.parameters["pipeline"], {stage.name: stage.network_outputs for stage in self.model.served}
        )


class Cascade(Staged, FromImages):
    """``image`` to what the last stage gives of every region; networks are models of their own, asked in the server."""

    def prepare(self) -> None:
        """Find the networks, and compile the definitions."""
        self.networks = self.open_networks()
        self.open_on_cpu()

    def open_networks(self) -> Networks[Pixels]:
        """What runs the networks; threads may share it."""
        return self.other_models()

    def open_work(self, *, is_heavy: bool) -> Work:
        """See ``FromImages.open_work``. Heavy pictures ask for one region at a time, between those of others."""
        options = {"regions_at_once": 1} if is_heavy else {"most_work": HEAVY_SAMPLE_PIXELS}
        return partial(self._responses, self.model.pixels(), self.open_stages(self.networks, **options))

    def answer(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer every picture; a bad one is an error of its own request only."""
        return self.answer_images(requests)

    def finalize(self) -> None:
        """Finish what was begun."""
        super().finalize()
        if self.on_gpu is None:
            self.networks.close()

    def response(self, request: Any, result: Tensors | Exception) -> Any:
        """The response to a request: what the stages gave of its picture, or what they raised."""
        if isinstance(result, BadImage):
            return self.refuse(request, result)
        if isinstance(result, NobodyWaits):
            return unavailable(WAITED_TOO_LONG)
        if isinstance(result, HeavyRegions):
            return self.put_off(request)
        if isinstance(result, NetworkFailed):
            return unavailable(str(result)) if result.is_overload else self.failure("a network", result)
        if isinstance(result, Exception):
            return self.failure("a picture", result)
        if left_out := int(result[LEFT_OUT][0, 0]):
            self.model.count_left_out(left_out)
        return self.respond(result)

    def _responses(self, decoder: Compiled, stages: Stages[Pixels], callers: Sequence[RequestCaller]) -> list[Any]:
        with self.timed("decode"):
            decoded = self.run_isolated(
                lambda asked: [
                    (picture, one.parameters)
                    for picture, one in zip(decoder.run([one.image for one in asked]), asked, strict=True)
                ],
                [caller.request for caller in callers],
                self.parameters_of,
            )
        return [
            self.response(caller.request, self._result(stages, one, caller))
            for caller, one in zip(callers, decoded, strict=True)
        ]

    def _result(
        self, stages: Stages[Pixels], decoded: tuple[Pixels | BadImage, Parameters] | BadImage, caller: Caller
    ) -> Tensors | Exception:
        if isinstance(decoded, BadImage):
            return decoded
        picture, parameters = decoded
        if isinstance(picture, BadImage):
            return picture
        try:
            return stages.run(picture, caller, self.by_stage(parameters))
        except Exception as error:  # whatever a stage raises, the other pictures have their answers
            # Without the frames that it passed through, which hold the picture.
            error.__traceback__ = error.__context__ = None
            return error


class CascadeFused(Cascade):
    """All stages and their networks in one process."""

    def prepare(self) -> None:
        """Load the networks, and compile the definitions."""
        if self.device == "gpu":
            from onestream.serving.models.on_gpu import cascade_on_gpu

            self.on_gpu = cascade_on_gpu(self, self.response, looked_at=self.count_regions, by_stage=self.by_stage)
            return
        super().prepare()

    def open_networks(self) -> Networks[Pixels]:
        """The networks beside the model."""
        return self.model.own_networks()


class OtherModels(Networks[Pixels]):
    """Models of Triton's, asked inside the server. ``outputs`` are the names of each network's, by its stage."""

    def __init__(self, pipeline: str, outputs: Mapping[str, Sequence[str]]) -> None:
        self._pipeline, self._outputs = pipeline, outputs
        # They wait most of the time: one for each instance of a network, and as many that are on their way; but one of
        # these models for each core must not fill the networks' queues, which have room for 32 for each core.
        self._askers = ThreadPoolExecutor(min(2 * len(os.sched_getaffinity(0)), _MOST_ASKERS), "ask")

    def run(self, stage: str, samples: Sequence[Pixels], callers: Sequence[Caller]) -> list[Tensors]:
        """See ``Networks.run``: all at once, so that the instances of a network share them."""
        answers = []
        for answer in self._askers.map(partial(self._ask, stage), samples, callers):
            deadline.extend()
            answers.append(answer)
        return answers

    def close(self) -> None:
        """End the threads that ask."""
        self._askers.shutdown()

    def _ask(self, stage: str, sample: Pixels, caller: Caller) -> Tensors:
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
