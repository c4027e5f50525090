"""A running server as a subject: what can be seen of a pipeline from outside."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from onestream.measure.parity.subject import Observation, Outputs, Photo, Refused, Subject
from onestream.preprocess.definition import PreprocessingStage
from onestream.serving.server.triton.load_failures import one_line
from onestream.wire.tensor_names import IMAGE, PIXELS

_TIMEOUT_S = 30.0


class NotServed(Exception):
    """There is no server at the address, or it does not serve the pipeline; the message says which."""


class ServedModels:
    """Those of ``models`` that a Triton server has ready, by its gRPC service at ``address`` (host:port).

    A context manager, which closes the connection. Raises ``NotServed``.
    """

    def __init__(self, address: str, models: Sequence[str]) -> None:
        self.client = triton.InferenceServerClient(address.removeprefix("grpc://"))
        try:
            self.ready = {name for name in models if self.client.is_model_ready(name, client_timeout=_TIMEOUT_S)}
        except InferenceServerException as error:
            raise NotServed(
                f"no Triton answers at {address} by gRPC ({one_line(error.message())}); start one with "
                "onestream serve, or use --serve"
            ) from None
        if not self.ready:
            raise NotServed(f"the server at {address} has none of the models {', '.join(models)} ready")

    @property
    def digests(self) -> dict[str, str]:
        """The definition digest in each model's configuration; empty where it carries none."""
        found = {}
        for name in sorted(self.ready):
            config = self.client.get_model_config(name, client_timeout=_TIMEOUT_S).config
            found[name] = config.parameters["definition_digest"].string_value
        return found

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def __enter__(self) -> ServedModels:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Served(Subject[Photo]):
    """A pipeline on a Triton server.

    ``NAME_preprocess`` shows the pixels, ``NAME_model`` the network's outputs, ``NAME`` and ``NAME_fused`` their
    answers. Models that are not served are left out. ``address`` is host:port of its gRPC service. Raises
    ``NotServed``.
    """

    def __init__(self, pipeline: str, address: str) -> None:
        super().__init__("server", judged=True)
        self._pipeline = pipeline
        roles = (f"{pipeline}_preprocess", f"{pipeline}_model", pipeline, f"{pipeline}_fused")
        self._served = ServedModels(address, roles)
        self._client, self._models = self._served.client, self._served.ready

    @property
    def digests(self) -> dict[str, str]:
        """See ``ServedModels.digests``."""
        return self._served.digests

    def observe(self, photo: Photo) -> Observation:
        """Whatever the served models return for one photo."""
        stages: dict[PreprocessingStage, npt.NDArray[Any]] = {}
        outputs: Outputs | None = None
        answers: dict[str, Outputs] = {}
        image = np.frombuffer(photo.data, np.uint8)[None]
        try:
            if f"{self._pipeline}_preprocess" in self._models:
                pixels = self._ask(f"{self._pipeline}_preprocess", IMAGE, image)[PIXELS]
                stages["crop"] = pixels[0]
                if f"{self._pipeline}_model" in self._models:
                    outputs = self._ask(f"{self._pipeline}_model", PIXELS, pixels)
            for form in (self._pipeline, f"{self._pipeline}_fused"):
                if form in self._models:
                    answers[form] = self._ask(form, IMAGE, image)
        except InferenceServerException as error:
            raise Refused(one_line(error.message())) from None
        return Observation(stages, outputs=outputs, answers=answers)

    def close(self) -> None:
        """Close the connection."""
        self._served.close()

    def _ask(self, model: str, name: str, value: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[Any]]:
        tensor = triton.InferInput(name, list(value.shape), "UINT8")
        tensor.set_data_from_numpy(value)
        result = self._client.infer(model, [tensor], client_timeout=_TIMEOUT_S)
        return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}
