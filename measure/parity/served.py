"""A running server as a subject: what can be seen of a pipeline from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.json_format import ParseDict
from tritonclient.grpc.model_config_pb2 import ModelConfig

from onestream.client import Client, OnestreamError
from onestream.measure.parity.subject import Observation, Outputs, Photo, Refused, Subject
from onestream.preprocess.definition import PreprocessingStage
from onestream.serving.built.triton_config import precision_of
from onestream.serving.cascade import SERVED_STAGES
from onestream.wire.kinds import STAGES_PARAMETER
from onestream.wire.tensor_names import IMAGE, PIXELS

_TIMEOUT_S = 60.0
"""A page of text takes a cascade longer than other pictures take."""


class NotServed(Exception):
    """There is no server at the address, or it does not serve the pipeline; the message says which."""


class ServedModels:
    """Those of ``models`` that a Triton server has ready, by its gRPC service at ``address`` (host:port).

    A context manager, which closes the connection. Raises ``NotServed``.
    """

    def __init__(self, address: str, models: Sequence[str]) -> None:
        self._client = Client(address, timeout_s=_TIMEOUT_S, retries=0)
        try:
            self._client.server_info()
        except OnestreamError as error:
            raise NotServed(
                f"no Triton answers at {address} by gRPC ({error}); start one with onestream serve, or use --serve"
            ) from None
        self.ready = {name for name in models if self._client.is_ready(name)}
        if not self.ready:
            raise NotServed(f"the server at {address} has none of the models {', '.join(models)} ready")

    @property
    def digests(self) -> dict[str, str]:
        """The definition digest in each model's configuration; empty where it carries none."""
        return {name: self._parameter(name, "definition_digest") for name in sorted(self.ready)}

    @property
    def stage_digests(self) -> dict[str, dict[str, str]]:
        """The digests of a cascade's stages, by their names, that each model carries."""
        found = {name: self._parameter(name, STAGES_PARAMETER) for name in sorted(self.ready)}
        return {
            name: {stage.name: stage.definition_digest for stage in SERVED_STAGES.validate_json(stages)}
            for name, stages in found.items()
            if stages
        }

    def beside(self, model: str) -> list[str]:
        """The inputs of a model beside its picture."""
        return [one.name for one in self._config(model).input if one.name not in (IMAGE, PIXELS)]

    @property
    def title(self) -> str:
        """*server*, with the precision of the network where that is not float32, such as *server (int8)*."""
        found = precision_of(
            sorted(self.ready), lambda name: self._config(name) if self._client.is_ready(name) else None
        )
        return "server" if found == "float32" else f"server ({found})"

    def ask(self, model: str, name: str, value: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[Any]]:
        """A model's outputs for its one input. Raises ``Refused``."""
        try:
            outputs = self._client.infer(model, {name: value})
        except OnestreamError as error:
            raise Refused(str(error)) from None
        # A postprocessing may write into what it is given, and an answer's memory is read-only.
        return {name: np.array(output) for name, output in outputs.items()}

    def _config(self, model: str) -> ModelConfig:
        return ParseDict(dict(self._client.model_config(model)), ModelConfig())

    def _parameter(self, model: str, name: str) -> str:
        return str(self._config(model).parameters[name].string_value)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __enter__(self) -> ServedModels:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Served(Subject[Photo]):
    """A pipeline on a Triton server.

    ``NAME_preprocess`` shows the pixels, ``NAME_model`` the network's outputs, ``NAME`` and ``NAME_fused`` their
    answers. Models that are not served are left out, and those that take more than a picture, which ``left_out`` names
    with what they take. ``address`` is host:port of its gRPC service. Raises ``NotServed``.
    """

    def __init__(self, pipeline: str, address: str) -> None:
        super().__init__("server", judged=True)
        self._pipeline = pipeline
        roles = (f"{pipeline}_preprocess", f"{pipeline}_model", pipeline, f"{pipeline}_fused")
        self._served = ServedModels(address, roles)
        beside = {model: self._served.beside(model) for model in sorted(self._served.ready)}
        self.left_out = {model: names for model, names in beside.items() if names}
        self.name, self._models = self._served.title, self._served.ready - self.left_out.keys()

    @property
    def shows_any(self) -> bool:
        """Whether any model takes a picture alone."""
        return bool(self._models)

    @property
    def digests(self) -> dict[str, str]:
        """See ``ServedModels.digests``."""
        return self._served.digests

    @property
    def stage_digests(self) -> dict[str, dict[str, str]]:
        """See ``ServedModels.stage_digests``."""
        return self._served.stage_digests

    def observe(self, photo: Photo) -> Observation:
        """Whatever the served models return for one photo."""
        stages: dict[PreprocessingStage, npt.NDArray[Any]] = {}
        outputs: Outputs | None = None
        answers: dict[str, Outputs] = {}
        image = np.frombuffer(photo.data, np.uint8)[None]
        ask = self._served.ask
        if f"{self._pipeline}_preprocess" in self._models:
            pixels = ask(f"{self._pipeline}_preprocess", IMAGE, image)[PIXELS]
            stages["crop"] = pixels[0]
            if f"{self._pipeline}_model" in self._models:
                outputs = ask(f"{self._pipeline}_model", PIXELS, pixels)
        for form in (self._pipeline, f"{self._pipeline}_fused"):
            if form in self._models:
                answers[form] = ask(form, IMAGE, image)
        return Observation(stages, outputs=outputs, answers=answers)

    def close(self) -> None:
        """Close the connection."""
        self._served.close()
