"""Loads and unloads the models of a running server.

Over gRPC: there Triton gives every load a thread of its own, while over HTTP a load holds one of the server's few
connection threads, and with it the requests of every client on that thread.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onestream.serving.server.triton.load_failures import one_line

_REQUEST_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """Triton's statement about a model.

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

    def check_live(self, timeout_s: float) -> None:
        """Return when the server says that it is alive.

        Raises:
            ControlError: it did not within ``timeout_s`` seconds. A refused connection is told at once.
        """
        self._call(self._client.is_server_live, timeout_s=timeout_s)

    def model_states(self) -> dict[str, ModelState]:
        """Read the state of every model in the repository, by name.

        Raises:
            ControlError: no answer.
        """
        index = self._call(self._client.get_model_repository_index, timeout_s=_REQUEST_TIMEOUT_S)
        return {model.name: ModelState(state=model.state, reason=model.reason) for model in index.models}

    def ensembles(self) -> dict[str, frozenset[str]]:
        """Read which models every loaded ensemble is made of, by the ensemble's name.

        Raises:
            ControlError: no answer.
        """
        ensembles: dict[str, frozenset[str]] = {}
        for name, state in self.model_states().items():
            if state.state == "READY":
                config = self._call(self._client.get_model_config, name, timeout_s=_REQUEST_TIMEOUT_S).config
                ensembles[name] = frozenset(step.model_name for step in config.ensemble_scheduling.step)
        return {name: steps for name, steps in ensembles.items() if steps}

    def is_ensemble(self, model: str) -> bool:
        """Tell whether a loaded model is an ensemble, which has no processes.

        Raises:
            ControlError: no answer, or it is not loaded.
        """
        config = self._call(self._client.get_model_config, model, timeout_s=_REQUEST_TIMEOUT_S).config
        return bool(config.ensemble_scheduling.step)

    def unload(self, model: str, *, timeout_s: float = _REQUEST_TIMEOUT_S) -> None:
        """Begin to unload a model: at once it, its ensembles and the server are not ready.

        Requests that its processes hold are finished or fail meanwhile; they do not delay a later load. Waits while a
        model of the same ensemble loads.

        Raises:
            ControlError: no answer within ``timeout_s`` seconds.
        """
        self._call(self._client.unload_model, model, timeout_s=timeout_s)

    def load(self, model: str, *, timeout_s: float) -> None:
        """Load a model, with all models that it needs, side by side, and all ensembles that need it.

        Models that are loaded already stay as they are.

        Raises:
            ControlError: it did not load, or not within ``timeout_s`` seconds.
        """
        self._call(self._client.load_model, model, timeout_s=timeout_s)

    def keep_unready(self, model: str) -> None:
        """Take a model out of service so that the server is not ready until the model is loaded again.

        Unloading alone would make the server ready without the model. A load that fails leaves a reason behind, and
        Triton counts a model that is unavailable for a reason. The load brings a file of its own, so that it fails for
        this reason even where the model's files are gone.

        Raises:
            ControlError: no answer.
        """
        self.unload(model)
        refused = json.dumps({"backend": "stopped-after-crashes"})
        with contextlib.suppress(ControlError):
            self._call(
                self._client.load_model, model, timeout_s=_REQUEST_TIMEOUT_S, config=refused, files={"file:1/none": b""}
            )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _call(self, method: Callable[..., Any], *arguments: str, timeout_s: float, **options: Any) -> Any:
        try:
            return method(*arguments, headers=self._headers, client_timeout=timeout_s, **options)
        except (self._error, ValueError) as error:  # gRPC raises the second where the channel is closed
            raise ControlError(one_line(str(error))) from None
