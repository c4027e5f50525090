"""Loads and unloads the models of a running server.

Over gRPC: there Triton gives every load a thread of its own, while over HTTP a load holds one of the server's few
connection threads, and with it the requests of every client on that thread.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from serving.load_failures import one_line

_REQUEST_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """What Triton says about a model.

    Attributes:
        state: *READY*, *LOADING*, *UNLOADING*, *UNAVAILABLE*, or empty for a model that was never loaded.
        reason: why it is unavailable; may be empty.
    """

    state: str
    reason: str


class ControlError(Exception):
    """Triton refused to load or unload a model, or did not answer. The message is one line."""


class TritonControl:
    """The model control of one server.

    Args:
        url: ``host:port`` of its gRPC service.
        header: name of the header that carries the token.
        token: what the server was told to expect.
    """

    def __init__(self, url: str, *, header: str, token: str) -> None:
        import tritonclient.grpc

        # A proxy from the environment must not see requests for this machine.
        options = [("grpc.enable_http_proxy", 0)]
        self._client: Any = tritonclient.grpc.InferenceServerClient(url, channel_args=options)
        self._headers = {f"triton-grpc-protocol-{header}": token}
        self._error: type[Exception] = tritonclient.grpc.InferenceServerException

    def model_states(self) -> dict[str, ModelState]:
        """Read the state of every model in the repository, by name.

        Raises:
            ControlError: no answer.
        """
        try:
            index = self._client.get_model_repository_index(headers=self._headers, client_timeout=_REQUEST_TIMEOUT_S)
        except self._error as error:
            raise ControlError(one_line(str(error))) from None
        return {model.name: ModelState(state=model.state, reason=model.reason) for model in index.models}

    def reload(self, model: str, *, timeout_s: float) -> None:
        """Unload a model and load it again, in new processes.

        At once after the call begins the model, and with it the server, is not ready. Requests that the old processes
        hold do not delay the new ones.

        Raises:
            ControlError: it did not load, or not within ``timeout_s`` seconds.
        """
        self._unload(model)
        try:
            self._client.load_model(model, headers=self._headers, client_timeout=timeout_s)
        except self._error as error:
            raise ControlError(one_line(str(error))) from None

    def keep_unready(self, model: str) -> None:
        """Take a model out of service so that the server is not ready until the model is loaded again.

        Unloading alone would make the server ready without the model. A load that fails leaves a reason behind, and
        Triton counts a model that is unavailable for a reason.

        Raises:
            ControlError: no answer.
        """
        self._unload(model)
        refused = json.dumps({"backend": "stopped-after-crashes"})
        try:
            self._client.load_model(model, headers=self._headers, config=refused, client_timeout=_REQUEST_TIMEOUT_S)
        except self._error:
            return
        raise ControlError(f"Triton loaded model '{model}' with a backend that does not exist")

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _unload(self, model: str) -> None:
        try:
            self._client.unload_model(model, headers=self._headers, client_timeout=_REQUEST_TIMEOUT_S)
        except self._error as error:
            raise ControlError(one_line(str(error))) from None
