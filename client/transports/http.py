"""The inference protocol over HTTP, with binary tensors, on the standard library.

``tritonclient.http`` is built on gevent, whose connections belong to the thread that opened them, so it is not
used: any thread may call this transport.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from client.errors import BadImage, OnestreamError, TimedOut, UnexpectedResponse
from client.transports.base import IMAGE_INPUT, InferRequest, Region, RegionSlice, Tensors
from client.transports.http_pool import Answer, HttpPool
from client.transports.refusals import refusal
from client.transports.tensors import decode_tensor

_STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
}
_HEAD_LENGTH = "Inference-Header-Content-Length"


class HttpTransport:
    """HTTP/1.1 with one keep-alive connection for each call in progress."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: bool,
        connect_timeout_s: float,
        base_path: str = "",
        token: str | None = None,
    ) -> None:
        """``host`` without brackets, also for IPv6; ``base_path`` is what a proxy puts before ``/v2``."""
        self._pool = HttpPool(
            host, port, tls=tls, connect_timeout_s=connect_timeout_s, base_path=base_path, token=token
        )

    @property
    def url(self) -> str:
        """The address in full."""
        return self._pool.url

    def infer(self, request: InferRequest, *, timeout_s: float) -> Tensors:
        """All outputs of the model for this request."""
        tensor: dict[str, Any] = {"name": IMAGE_INPUT, "datatype": "UINT8", "shape": request.shape}
        if isinstance(request.image, RegionSlice):
            tensor["parameters"] = {
                "shared_memory_region": request.image.region_name,
                "shared_memory_byte_size": request.image.byte_size,
            }
            data = b""
        else:
            tensor["parameters"] = {"binary_data_size": len(request.image)}
            data = request.image
        fields = {"id": request.request_id, "inputs": [tensor], "parameters": {"binary_data_output": True}}
        head = json.dumps(fields).encode()
        answer = self._pool.exchange(
            "POST",
            _model_path(request.model, "infer"),
            timeout_s=timeout_s,
            body=[head, data],
            headers={_HEAD_LENGTH: str(len(head)), "Content-Type": "application/octet-stream"},
        )
        self._require_success(answer, request.model)
        return self._read_tensors(answer)

    def is_ready(self, model: str | None, *, timeout_s: float) -> bool:
        """Whether the server (``None``) or the model says that it is ready."""
        path = "/v2/health/ready" if model is None else _model_path(model, "ready")
        return self._pool.exchange("GET", path, timeout_s=timeout_s).status == 200

    def server_metadata(self, *, timeout_s: float) -> Mapping[str, Any]:
        """``name``, ``version`` and ``extensions`` of the server."""
        return self._get_json("/v2", timeout_s)

    def model_config(self, model: str, *, timeout_s: float) -> Mapping[str, Any]:
        """The model's configuration."""
        return self._get_json(_model_path(model, "config"), timeout_s, model=model)

    def model_statistics(self, model: str, *, timeout_s: float) -> Sequence[Mapping[str, Any]]:
        """One mapping per served version."""
        rows = self._get_json(_model_path(model, "stats"), timeout_s, model=model).get("model_stats")
        if not isinstance(rows, list):
            raise UnexpectedResponse(f"{self.url} answered statistics without a 'model_stats' list")
        return rows

    def register_region(self, region: Region, *, timeout_s: float) -> None:
        """Let the server map the region."""
        fields = {"key": f"/{region.name}", "offset": 0, "byte_size": region.byte_size}
        self._post_region(region.name, "register", timeout_s, json.dumps(fields).encode())

    def unregister_region(self, region_name: str, *, timeout_s: float) -> None:
        """Let the server unmap the region."""
        self._post_region(region_name, "unregister", timeout_s, b"")

    def close(self) -> None:
        """Close every connection, which ends every call in progress."""
        self._pool.close()

    def _post_region(self, region_name: str, action: str, timeout_s: float, body: bytes) -> None:
        path = f"/v2/systemsharedmemory/region/{region_name}/{action}"
        self._require_success(self._pool.exchange("POST", path, timeout_s=timeout_s, body=[body]), None)

    def _get_json(self, path: str, timeout_s: float, *, model: str | None = None) -> Mapping[str, Any]:
        answer = self._pool.exchange("GET", path, timeout_s=timeout_s)
        self._require_success(answer, model)
        try:
            fields = json.loads(answer.body)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise UnexpectedResponse(f"{self.url}{path} answered {answer.body[:80]!r}, expected a JSON object")
        return fields

    def _require_success(self, answer: Answer, model: str | None) -> None:
        if answer.status != 200:
            raise self._refusal(answer, model)

    def _refusal(self, answer: Answer, model: str | None) -> OnestreamError:
        try:
            message = str(json.loads(answer.body)["error"])
        except (ValueError, KeyError, TypeError):
            message = answer.body[:200].decode(errors="replace")
        if answer.status == 413:
            return BadImage("too_large", f"{self.url} refuses a body of this size (HTTP 413)")
        if answer.status == 504:
            return TimedOut(f"a proxy at {self.url} had no answer from the server in time (HTTP 504)")
        status = _STATUS_NAMES.get(answer.status, f"HTTP {answer.status}")
        return refusal(status, message, model=model, url=self.url)

    def _read_tensors(self, answer: Answer) -> Tensors:
        """Outputs from a body that is a JSON head, then the binary tensors in the order of the head."""
        body = memoryview(answer.body)
        tensors: Tensors = {}
        try:
            at = int(answer.headers.get(_HEAD_LENGTH, len(body)))
            for output in json.loads(answer.body[:at])["outputs"]:
                end = at + output["parameters"]["binary_data_size"]
                name = output["name"]
                tensors[name] = decode_tensor(name, output["datatype"], output["shape"], body[at:end])
                at = end
        except (ValueError, KeyError, TypeError) as error:
            raise UnexpectedResponse(
                f"{self.url} answered {answer.body[:80]!r}, expected tensors in binary form ({error!r})"
            ) from None
        return tensors


def _model_path(model: str, action: str) -> str:
    return f"/v2/models/{quote(model, safe='')}/{action}"
