"""A running server as a subject: what can be seen of a pipeline from outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from onestream.measure.parity.network import top_id
from onestream.measure.parity.subject import Observation, Outputs, Photo, Refused, Subject
from onestream.preprocess.tolerances import Stage
from onestream.serving.server.triton.load_failures import one_line
from onestream.wire.tensor_names import CLASS_IDS, IMAGE, PIXELS

_TIMEOUT_S = 30.0


class NotServed(Exception):
    """There is no server at the address, or it does not serve the pipeline; the message says which."""


class Served(Subject):
    """A pipeline on a Triton server.

    ``NAME_preprocess`` shows the pixels, ``NAME_model`` the network's outputs, ``NAME`` and ``NAME_fused`` the best
    class. Models that are not served are left out. ``address`` is host:port of its gRPC service. Raises ``NotServed``.
    """

    def __init__(self, pipeline: str, address: str) -> None:
        super().__init__("server", judged=True)
        self._client = triton.InferenceServerClient(address.removeprefix("grpc://"))
        self._pipeline = pipeline
        roles = (f"{pipeline}_preprocess", f"{pipeline}_model", pipeline, f"{pipeline}_fused")
        try:
            self._models = {name for name in roles if self._client.is_model_ready(name, client_timeout=_TIMEOUT_S)}
        except InferenceServerException as error:
            raise NotServed(
                f"no Triton answers at {address} by gRPC ({one_line(error.message())}); start one with "
                "onestream serve, or use --serve"
            ) from None
        if not self._models:
            raise NotServed(f"the server at {address} has none of the models {', '.join(roles)} ready")

    @property
    def digests(self) -> dict[str, str]:
        """The definition digest in each model's configuration; empty where it carries none."""
        found = {}
        for name in sorted(self._models):
            config = self._client.get_model_config(name, client_timeout=_TIMEOUT_S).config
            found[name] = config.parameters["definition_digest"].string_value
        return found

    def observe(self, photo: Photo) -> Observation:
        """Whatever the served models return for one photo."""
        stages: dict[Stage, npt.NDArray[Any]] = {}
        outputs: Outputs | None = None
        tops: dict[str, int] = {}
        image = np.frombuffer(photo.data, np.uint8)[None]
        try:
            if f"{self._pipeline}_preprocess" in self._models:
                pixels = self._ask(f"{self._pipeline}_preprocess", IMAGE, image)[PIXELS]
                stages["crop"] = pixels[0]
                if f"{self._pipeline}_model" in self._models:
                    outputs = self._ask(f"{self._pipeline}_model", PIXELS, pixels)
            for form in (self._pipeline, f"{self._pipeline}_fused"):
                if form in self._models:
                    results = self._ask(form, IMAGE, image)
                    top = int(results[CLASS_IDS][0, 0]) if CLASS_IDS in results else top_id(results)
                    if top is not None:
                        tops[form] = top
        except InferenceServerException as error:
            raise Refused(one_line(error.message())) from None
        return Observation(stages, outputs=outputs, top_ids=tops)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _ask(self, model: str, name: str, value: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[Any]]:
        tensor = triton.InferInput(name, list(value.shape), "UINT8")
        tensor.set_data_from_numpy(value)
        result = self._client.infer(model, [tensor], client_timeout=_TIMEOUT_S)
        return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}
