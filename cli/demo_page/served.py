"""Asks a running server for the page: which pipelines take images, and what they make of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic, perf_counter, sleep
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.json_format import ParseDict
from pydantic import ValidationError
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from onestream.client import Client, ModelNotFound, ModelStatistics, Tensors
from onestream.client.calls import positive
from onestream.postprocess.kinds import AnyPostprocess, read_postprocess
from onestream.preprocess import Definition, Limits
from onestream.preprocess.headers.reader import read_header
from onestream.preprocess.user_files import describe
from onestream.serving.built.triton_config import precision_of
from onestream.serving.cascade import SERVED_STAGES
from onestream.wire.kinds import KIND_PARAMETER, STAGES_PARAMETER
from onestream.wire.limits import MAX_BODY_BYTES_PARAMETER, TIMEOUT_PARAMETER
from onestream.wire.tensor_names import IMAGE, IMAGE_SIZE, PIXELS

_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 5.0
_COUNTED_WITHIN_S = 0.5
_COUNTED_PAUSE_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A served model that takes images, with what its configuration says.

    ``preprocess_model``, ``network_model`` and ``postprocess_model`` are its steps, by name, where they can be asked
    alone, else None. ``kind``, of its answers, and ``postprocess`` are None, and ``timeout_s`` 0, where no
    configuration states them. ``precision`` is that of the network, such as *float32*. ``inputs`` are those beside the
    image, by name their datatype and their dimensions without the batch. ``network_takes_size``: the network takes the
    picture's size. Of a cascade ``definition`` is
    the first stage's and ``stages`` has all by their names, in order; of others it is empty.
    """

    name: str
    definition: Definition
    limits: Limits
    max_body_bytes: int
    timeout_s: int
    precision: str
    kind: str | None
    postprocess: AnyPostprocess | None
    preprocess_model: str | None
    network_model: str | None
    postprocess_model: str | None
    network_takes_size: bool = False
    inputs: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    stages: Mapping[str, Definition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Offer:
    """The pipelines of a server by name, in order, and why others with an image as input cannot be used."""

    forms: Mapping[str, Form]
    unreadable: Mapping[str, str]

    def not_found(self, name: str) -> ModelNotFound:
        """The error for a name that is none of theirs."""
        text = f"the server has no pipeline {name!r:.150} that takes images; it has {', '.join(self.forms) or 'none'}"
        return ModelNotFound(text, status="NOT_FOUND")


@dataclass(frozen=True, slots=True)
class Answer:
    """The outputs of a form for one image, each with a batch of 1, and the time that they took.

    ``latency_ms`` is what this process saw. ``spent`` is what Triton counted meanwhile: this request, and those of
    others where there were any.
    """

    outputs: Tensors
    latency_ms: float
    spent: ModelStatistics


class Served:
    """A Triton server, asked by gRPC. Raises the errors of ``onestream.client.errors``; thread-safe.

    ``url`` is host:port or grpc://host:port. Raises ``ValueError`` for another kind of address.
    """

    def __init__(self, url: str, *, timeout_s: float = _TIMEOUT_S) -> None:
        address = url.removeprefix("grpc://")
        if "://" in address:
            raise ValueError(f"expected host:port of Triton's gRPC service, such as 127.0.0.1:8001; got {url}")
        self._timeout_s = positive("timeout_s", timeout_s)
        self._client = Client(address, timeout_s=timeout_s, connect_timeout_s=_CONNECT_TIMEOUT_S)

    @property
    def url(self) -> str:
        """The server's address in full."""
        return self._client.url

    def offer(self) -> Offer:
        """Every model that takes an encoded image and carries the definition it was built with."""
        self._client.server_info()
        stated = {name: dict(self._client.model_config(name)) for name in self._client.models()}
        configs = {name: ParseDict(config, ModelConfig()) for name, config in stated.items()}
        forms, unreadable = {}, {}
        for name, config in sorted(configs.items()):
            if (
                IMAGE in [one.name for one in config.input]
                and PIXELS not in [one.name for one in config.output]
                and ("definition" in config.parameters or STAGES_PARAMETER in config.parameters)
            ):
                try:
                    forms[name] = _form(name, configs)
                except ValidationError as error:
                    unreadable[name] = f"model {name!r} was built by another version of onestream: {describe(error)}"
        return Offer(forms, unreadable)

    def answer(self, form: Form, image: bytes) -> Answer:
        """Send one image through the whole pipeline."""
        self._client.max_body_bytes(form.name)  # connects and is remembered, so that the time below is the request's
        before = self._client.statistics(form.name)
        began = perf_counter()
        outputs = self._client.infer(form.name, image, timeout_s=max(self._timeout_s, form.timeout_s))
        latency_ms = (perf_counter() - began) * 1e3
        return Answer(outputs, latency_ms, self._spent(form.name, before))

    def pixels(self, form: Form, image: bytes) -> npt.NDArray[np.uint8] | None:
        """The input of the server's network, (height, width, channels); None where no model shows it."""
        if form.preprocess_model is None:
            return None
        pixels: npt.NDArray[np.uint8] = self._client.infer(form.preprocess_model, image)[PIXELS][0]
        return pixels

    def answer_to_pixels(self, form: Form, pixels: npt.NDArray[np.uint8], image: bytes) -> Tensors | None:
        """The served network's answer to other pixels of an image; None where its steps are not served."""
        if form.network_model is None or form.postprocess_model is None:
            return None
        size = {IMAGE_SIZE: np.array([read_header(image).oriented_hw], np.int32)}
        outputs = self._client.infer(
            form.network_model, {PIXELS: pixels[None], **(size if form.network_takes_size else {})}
        )
        takes_size = form.postprocess is not None and form.postprocess.takes_image_size
        return self._client.infer(form.postprocess_model, {**outputs, **(size if takes_size else {})})

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def _spent(self, model: str, before: ModelStatistics) -> ModelStatistics:
        """The statistics since ``before``. Waits for them: Triton counts a request a moment after its answer."""
        deadline = monotonic() + _COUNTED_WITHIN_S
        while True:
            spent = self._client.statistics(model) - before
            if all(one.success.count for one in (spent, *spent.steps)) or monotonic() > deadline:
                return spent
            sleep(_COUNTED_PAUSE_S)


def _form(name: str, configs: Mapping[str, Any]) -> Form:
    """``configs`` holds the configurations of all models that are ready. Raises ``ValidationError``."""
    config = configs[name]
    # After a rollout the steps have the names of another version, so the ensemble is asked first.
    steps = [step.model_name for step in config.ensemble_scheduling.step]
    pipeline = config.parameters["pipeline"].string_value or name

    def role(suffix: str) -> str | None:
        found = next((step for step in steps if step.endswith(suffix)), pipeline + suffix)
        return found if found in configs else None

    def parameter(key: str, *models: str | None) -> str:
        """The first of the models that states it."""
        stated = (configs[model].parameters[key].string_value for model in models if model is not None)
        return next(filter(None, stated), "")

    preprocess_model, postprocess_model = role("_preprocess"), role("_postprocess")
    limits = parameter("limits", name, preprocess_model)
    max_body_bytes = parameter(MAX_BODY_BYTES_PARAMETER, name, preprocess_model)
    timeout_s = parameter(TIMEOUT_PARAMETER, name)
    postprocess = parameter("postprocess", name, postprocess_model)
    checked = Limits.model_validate_json(limits) if limits else Limits()
    stated = parameter(STAGES_PARAMETER, name)
    stages = {stage.name: stage.definition for stage in SERVED_STAGES.validate_json(stated)} if stated else {}
    definition = parameter("definition", name)
    network_model = role("_model")
    return Form(
        name=name,
        definition=next(iter(stages.values())) if stages else Definition.from_json(definition),
        limits=checked,
        max_body_bytes=int(max_body_bytes) if max_body_bytes.isdecimal() else checked.max_body_bytes,
        timeout_s=int(timeout_s) if timeout_s.isdecimal() else 0,
        precision=precision_of([name], configs.get),
        kind=parameter(KIND_PARAMETER, name) or None,
        postprocess=read_postprocess(postprocess) if postprocess else None,
        preprocess_model=preprocess_model,
        network_model=network_model,
        postprocess_model=postprocess_model,
        network_takes_size=network_model is not None
        and IMAGE_SIZE in [one.name for one in configs[network_model].input],
        inputs={
            one.name: (DataType.Name(one.data_type).removeprefix("TYPE_"), tuple(one.dims))
            for one in config.input
            if one.name != IMAGE
        },
        stages=stages,
    )
