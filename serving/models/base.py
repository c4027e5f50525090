"""Shared by all models that Triton's Python backend runs: the stamped definition, one answer for each request.

A class loads the definition beside it, refuses to load when the stamps differ, and turns requests into calls.
"""

from __future__ import annotations

import ctypes
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from onestream.postprocess.kinds import (
    Tensors,
)
from onestream.postprocess.parameters import NO_PARAMETERS, BadParameter, Parameters, RequestParameter, read_parameters
from onestream.preprocess import (
    BadImage,
    OutOfMemory,
    PreprocessError,
)
from onestream.preprocess.errors import BadInput, send_notices_to
from onestream.preprocess.headers.reader import Checked
from onestream.preprocess.limits import HEAVY_WORK, admit
from onestream.serving.built import certificate
from onestream.serving.engine.cpu import Inputs
from onestream.serving.errors import NetworkFailed
from onestream.serving.models import deadline
from onestream.serving.models.deadline import RequestCaller
from onestream.serving.models.heavy_pictures import HeavyLine, Work, unavailable
from onestream.serving.models.loaded import LoadedModel, Pictures
from onestream.serving.models.metrics import ModelMetrics
from onestream.serving.models.refusal_log import RefusalLog
from onestream.wire.limits import PICTURES_PARAMETER
from onestream.wire.refusals import MAY_BE_SENT_AGAIN, too_many_values
from onestream.wire.tensor_names import IMAGE, PIXELS, PIXELS_OF

_LARGEST_WAITING = 2
"""Heavy images of the largest size that a process keeps waiting, and as many bytes of smaller ones."""

Image = npt.NDArray[np.uint8]


class Adapter(ABC):
    """Common to all models: the stamp, and one response per request whatever happens."""

    def initialize(self, args: dict[str, str]) -> None:
        """Called by Triton once per instance. Raises where the model must not be served."""
        config = json.loads(args["model_config"])
        self.name = args["model_name"]
        self.output_names = [output["name"] for output in config["output"]]
        self._inputs = {one["name"]: one for one in config["input"]}
        self.device = "gpu" if args["model_instance_kind"] == "GPU" else "cpu"
        self.gpu_index = int(args["model_instance_device_id"])
        """The GPU that Triton placed this instance on, where it is on one."""
        self.metrics = ModelMetrics(self.name)
        # Said once for all instances of the model.
        warn = pb_utils.Logger.log_warn if args["model_instance_name"].endswith("_0") else lambda _line: None
        self.model = LoadedModel(
            Path(args["model_repository"]),
            {key: entry["string_value"] for key, entry in config["parameters"].items()},
            name=self.name,
            batch=int(config["max_batch_size"]),
            version=args["model_version"],
            counts=self.metrics,
            warn=warn,
        )
        for folder, definition in self.model.stamped.items():
            for warning in certificate.check(folder, definition, model=self.name):
                warn(warning)
        self._pictures = [name for name in self.model.parameters.get(PICTURES_PARAMETER, "").split(",") if name]
        """The inputs that are images, beside the first."""
        self.refusals = RefusalLog(self.name, write=pb_utils.Logger.log_warn)
        send_notices_to(lambda line: pb_utils.Logger.log_warn(f"{self.name}: {line}"))
        self.prepare()
        _return_free_memory()

    @abstractmethod
    def prepare(self) -> None:
        """Load what the model needs; ``model`` is read."""

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Called by Triton with the requests of one batch; a batch that takes too long ends this process."""
        with deadline.batch_deadline():
            return self.answer(requests)

    @abstractmethod
    def answer(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer the requests of one batch: one response for each, in order.

        None where the responses are sent by other means.
        """

    def isolated(self, work: Callable[[Sequence[Any]], list[Any]], requests: Sequence[Any]) -> list[Any]:
        """The responses that ``work`` makes to requests. Where it raises, it works on each alone.

        The response to one that it raises for alone is an error: of ``BadImage``, or that the request failed.
        """
        try:
            return work(requests)
        except BadImage as error:
            if len(requests) == 1:
                return [self.refuse(requests[0], error)]
        except Exception as error:  # whatever it is, Triton would answer with a stack trace
            if len(requests) == 1:
                return [self.failure("the request", error)]
        responses = []
        for request in requests:
            deadline.extend()
            responses += self.isolated(work, [request])
        return responses

    def failure(self, what: str, error: Exception) -> Any:
        """The response to a request of which ``what`` raised; the log has the error's text, which may name files."""
        cause = f": {error.__cause__}" if error.__cause__ else ""
        pb_utils.Logger.log_error(f"{self.name}: {what} failed: {type(error).__name__}: {error}{cause}")
        reason = error if isinstance(error, NetworkFailed) else f"{what} failed: {type(error).__name__}"
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(reason), pb_utils.TritonError.INTERNAL))

    def takes(self, name: str) -> bool:
        """Whether the model has an input of this name."""
        return name in self._inputs

    def rows(self, request: Any, name: str) -> npt.NDArray[Any]:
        """The values of an input of a request, with the batch as first dimension, which is at least 1.

        Raises ``BadImage`` for a batch of none. Triton takes the first dimension away from such a shape; the one that
        the build puts behind the batch (``triton_config.Model``) tells the two apart.
        """
        value: npt.NDArray[Any] = pb_utils.get_input_tensor_by_name(request, name).as_numpy()
        config = self._inputs[name]
        is_reshaped = "reshape" in config
        if value.ndim != 1 + len(config["reshape"]["shape"] if is_reshaped else config["dims"]):
            raise BadImage("bad_request", "got a batch of 0; one request is one image")
        return value[:, 0] if is_reshaped else value

    def inputs_of(self, request: Any) -> dict[str, npt.NDArray[Any]]:
        """The values of all inputs of a request but its images. Raises as ``rows``, and ``BadInput`` for too many."""
        images = {IMAGE, *self._pictures}
        found = {name: self.rows(request, name) for name in self._inputs if name not in images}
        for name, value in found.items():
            # Triton checked those of one size, and the definition made the pixels.
            if name != PIXELS and -1 in self._inputs[name]["dims"]:
                count, most = value[0].size, self.model.limits.max_input_values
                if count > most:
                    raise BadInput(f"{name}: {too_many_values(count, most)}")
        return found

    def single_image(self, request: Any, name: str = IMAGE) -> Image:
        """The image of a request by its input. Raises ``BadImage`` for one that carries not exactly one."""
        batch = self.rows(request, name)
        if len(batch) != 1:
            text = f"got a batch of {len(batch)} images; one request is one image, shape [1, bytes]"
            raise BadImage("bad_request", text)
        image: Image = batch[0]
        return image

    @cached_property
    def _checked(self) -> WeakKeyDictionary[Any, list[Checked]]:
        """The images of requests whose headers were read, until these are answered."""
        return WeakKeyDictionary()

    def images_of(self, request: Any) -> list[Checked]:
        """The image of a request, and its other pictures in their order, with their headers.

        Raises ``BadImage``, for another picture with its name.
        """
        if (known := self._checked.get(request)) is not None:
            return known
        found = [self.model.limits.checked(self.single_image(request))]
        for name in self._pictures:
            try:
                found.append(self.model.limits.checked(self.single_image(request, name)))
            except BadImage as error:
                raise error.named(name) from None
        return found

    def single_images(
        self, requests: Sequence[Any], parameters_of: Callable[[Any], Parameters]
    ) -> tuple[dict[int, Asked], dict[int, BadImage]]:
        """By their places the images of a batch of requests, and why the others are refused.

        These carry not exactly one image, parameters for which ``parameters_of`` raises ``BadImage``, or an image that
        breaks a limit.
        """
        single: dict[int, Asked] = {}
        refused: dict[int, BadImage] = {}
        for index, request in enumerate(requests):
            try:
                (image, *others), parameters = self.images_of(request), parameters_of(request)
                pictures = dict(zip((PIXELS_OF + name for name in self._pictures), others, strict=True))
                single[index] = Asked(image, parameters, self.inputs_of(request), pictures)
            except BadImage as error:
                refused[index] = error.as_result()
        return single, refused

    def run_isolated(
        self,
        run: Callable[[list[Asked]], list[Any]],
        requests: Sequence[Any],
        parameters_of: Callable[[Any], Parameters] = lambda _request: NO_PARAMETERS,
    ) -> list[Any]:
        """Run what a batch of requests asks for. The results are a sample or a ``BadImage`` for each.

        Requests that ``single_images`` refuses become ``BadImage``.
        """
        single, refused = self.single_images(requests, parameters_of)
        results = {**refused, **dict(zip(single, run(list(single.values())), strict=True))}
        return [results[index] for index in range(len(requests))]

    def responses_of(self, steps: Callable[..., list[Tensors | BadImage]], requests: Sequence[Any]) -> list[Any]:
        """The responses of the fused form to requests. ``steps`` is ``FusedSteps``, or the same on a GPU."""
        found = self.run_isolated(
            lambda asked: steps(
                [one.image for one in asked],
                [one.parameters for one in asked],
                [one.inputs for one in asked],
                [one.pictures for one in asked],
            ),
            requests,
            self.parameters_of,
        )
        return [
            self.refuse(request, answer) if isinstance(answer, BadImage) else self.respond(answer)
            for request, answer in zip(requests, found, strict=True)
        ]

    def finalize(self) -> None:
        """Called by Triton before the instance ends."""
        self.refusals.close()
        self.metrics.close()

    def respond(self, tensors: Tensors) -> Any:
        """A response with these tensors, of which each has a leading batch dimension."""
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in tensors.items()])

    def refuse(self, request: Any, error: BadImage) -> Any:
        """The response to a request whose image is refused; counted and logged."""
        self.metrics.bad_image(error.code)
        self.refusals.refused(request.request_id(), error)
        if isinstance(error, OutOfMemory):
            return unavailable(error.reason)
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG))

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Count the time that its block takes as a step of a batch."""
        began = time.perf_counter()
        yield
        self.metrics.step(step, 1000 * (time.perf_counter() - began))

    @cached_property
    def request_parameters(self) -> dict[str, RequestParameter]:
        """The parameters that a request may set, by their names."""
        return {parameter.name: parameter for parameter in self.model.options.request_parameters}

    def parameters_of(self, request: Any) -> Parameters:
        """The parameters that a request sets. Raises ``BadParameter``."""
        try:
            given = json.loads(request.parameters() or "{}")
        except (ValueError, RecursionError) as error:
            # Triton writes them without a check, such as a number that JSON does not have.
            raise BadParameter(f"that cannot be read: {type(error).__name__}") from None
        return read_parameters(given, self.request_parameters)


class Submitted(Protocol):
    """Batches that other threads answer."""

    def submit(self, callers: Sequence[RequestCaller], *, is_heavy: bool) -> None:
        """Hand over a batch, of light images or of a heavy one; returns when the next may come."""

    def close(self) -> None:
        """Answer what was handed over."""


class FromImages(Adapter):
    """Takes images. On a CPU the heavy ones of a batch are answered later, by another thread; the others at once.

    ``on_gpu`` is set by ``prepare`` where batches are answered on a GPU.
    """

    on_gpu: Submitted | None = None
    _heavy: HeavyLine | None = None

    @abstractmethod
    def open_work(self, *, is_heavy: bool) -> Work:
        """What answers requests on the CPU, for one thread: for light images, or for heavy ones.

        That for light ones may give ``put_off(request)`` in the place of a response.
        """

    def open_on_cpu(self) -> None:
        """Prepare for light and for heavy images on the CPU."""
        self._work = self.open_work(is_heavy=False)
        self._heavy = HeavyLine(
            partial(self.open_work, is_heavy=True),
            failed=partial(self.failure, "a large image"),
            max_waiting_bytes=_LARGEST_WAITING * self.model.limits.max_body_bytes,
        )

    def answer_images(self, requests: Sequence[Any]) -> list[Any] | None:
        """The responses to a batch; None on a GPU, whose threads send them: the light images first."""
        if self.on_gpu is None:
            return self.answer_on_cpu(requests)
        light: list[RequestCaller] = []
        heavy: list[RequestCaller] = []
        for request in requests:
            (heavy if self._is_heavy(request) else light).append(RequestCaller(request, is_held=False))
        if light:
            self.on_gpu.submit(light, is_heavy=False)
        for caller in heavy:
            self.on_gpu.submit([caller], is_heavy=True)
        return None

    def answer_on_cpu(self, requests: Sequence[Any]) -> list[Any]:
        """The response to each request of a batch, None where it comes later."""
        heavy = [self._is_heavy(request) for request in requests]
        light = [request for request, is_heavy in zip(requests, heavy, strict=True) if not is_heavy]
        answers = iter(self.isolated(self._answer_light, light) if light else ())
        return [
            self.put_off(request) if is_heavy else next(answers)
            for request, is_heavy in zip(requests, heavy, strict=True)
        ]

    def _answer_light(self, requests: Sequence[Any]) -> list[Any]:
        return self._work([RequestCaller(request, is_held=True) for request in requests])

    def _is_heavy(self, request: Any) -> bool:
        """Whether the others of its batch are answered before this request's image is decoded."""
        try:
            self.inputs_of(request)
            images = self._checked[request] = self.images_of(request)
            headers = [admit(image, self.model.definition, self.model.limits) for image in images]
            return sum(header.decoding_work for header in headers) > HEAVY_WORK
        except BadImage:
            return False

    def put_off(self, request: Any) -> Any:
        """Let a request be answered later, by the thread for heavy ones: None, or the response where too many wait."""
        assert self._heavy is not None
        images = [self.single_image(request, name) for name in (IMAGE, *self._pictures)]
        size = sum(value.nbytes for value in (*images, *self.inputs_of(request).values()))
        if self._heavy.take(request, size):
            return None
        reason = f"too many large images, or pages of much text, wait{MAY_BE_SENT_AGAIN}"
        self.refusals.refused(request.request_id(), PreprocessError(reason))
        return unavailable(reason)

    def finalize(self) -> None:
        """Answer what was taken."""
        if self.on_gpu is not None:
            self.on_gpu.close()
        if self._heavy is not None:
            self._heavy.close()
        super().finalize()


@dataclass(frozen=True, slots=True)
class Asked:
    """An encoded image with its header, the parameters of its request, the network's inputs beside the image, and its
    other pictures."""

    image: Checked
    parameters: Parameters
    inputs: Inputs
    pictures: Pictures


def _return_free_memory() -> None:
    """Give back to the system what loading took for a moment, some 25 MB of a network; by glibc alone."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
