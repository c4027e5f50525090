"""nginx's configuration for a ``Proxy``: the values that fill ``nginx_template.conf``, and the filling."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources

from onestream.serving.errors import BadProxy
from onestream.serving.proxy.settings import PATH, REQUEST_OVERHEAD_BYTES, Proxy
from onestream.wire.refusals import bad_image

MOST_JSON_BYTES = 9999
"""What Triton may read as JSON of one request. A nest of over 100,000 bytes overruns Triton 2.51's stack, and the JSON
of every pipeline has some hundred: the picture follows as binary data. Four digits, since nginx compares no numbers."""

_HTTP_ERRORS: tuple[tuple[int, str, str], ...] = (
    (401, "unauthenticated", "this server needs a token: Authorization: Bearer TOKEN"),
    (403, "closed", "this is closed; pipelines of this server are at /v2/models/NAME/infer"),
    (413, "too_large", "the request is larger than the limit of this model"),
    (415, "compressed", "compressed requests are not accepted"),
    (
        422,
        "json",
        f"the JSON of a request may have {MOST_JSON_BYTES} bytes, stated in digits by Inference-Header-Content-Length, "
        "or by Content-Length where all is JSON; this has $json_seen. Send images as binary data",
    ),
    (429, "too_many", "too many requests of this caller at once"),
    (502, "no_server", "the server behind this proxy does not answer"),
    (504, "too_slow", "the server behind this proxy did not answer in time"),
)
_GRPC_ERRORS: tuple[tuple[int, int, str], ...] = (
    (401, 16, "this server needs a token: authorization: Bearer TOKEN"),
    (403, 7, "this is closed; pipelines of this server take inference.GRPCInferenceService/ModelInfer"),
    # In the form of docs/wire-contract.md, by which clients know a bad image.
    (413, 3, bad_image("too_large", "the request is larger than the limit of this server")),
    (415, 12, "compressed requests are not accepted"),
    (429, 8, "too many requests of this caller at once"),
    (502, 14, "the server behind this proxy does not answer"),
    (504, 4, "the server behind this proxy did not answer in time"),
)
"""By HTTP's status, with gRPC's: 3 INVALID_ARGUMENT, 4 DEADLINE_EXCEEDED, 7 PERMISSION_DENIED, 8 RESOURCE_EXHAUSTED,
12 UNIMPLEMENTED, 14 UNAVAILABLE, 16 UNAUTHENTICATED."""

# Of Mustache, what the template needs: comments, sections and variables; the first two in lines of their own.
_COMMENT = re.compile(r"^\{\{!.*\}\}\n", re.MULTILINE)
_SECTION = re.compile(r"^\{\{([#^])(\w+)\}\}\n(.*?)^\{\{/\2\}\}\n", re.MULTILINE | re.DOTALL)
_VARIABLE = re.compile(r"\{\{(\w+)\}\}")


def nginx_config(proxy: Proxy, *, folder: str) -> str:
    """The configuration.

    Args:
        proxy: what it does.
        folder: an absolute path where nginx may write: its process id, and bodies that are too large for memory.

    Raises:
        BadProxy: the path of the folder holds what cannot be written into a configuration.
    """
    if not PATH.fullmatch(folder):
        raise BadProxy(f"{folder!r}: the temporary folder may not hold spaces, quotes or other signs that nginx reads")
    most_bytes = {model.name: model.max_body_bytes + REQUEST_OVERHEAD_BYTES for model in proxy.models}
    values: dict[str, object] = {name: getattr(proxy, name) for name in Proxy.__slots__} | {
        "folder": folder,
        "access_log": "off" if proxy.access_log == "off" else f"{proxy.access_log} requests",
        "most_json_bytes": MOST_JSON_BYTES,
        "health": [{"probe": probe} for probe in ("live", "ready")],
        "reads": [{"path": path} for path in ("", "/config", "/ready", *(["/stats"] if proxy.statistics else []))],
        "grpc_reads": [
            *({"method": f"Server{probe}", "needs_token": proxy.health_needs_token} for probe in ("Live", "Ready")),
            *({"method": method, "needs_token": True} for method in ("ServerMetadata", "ModelReady", "ModelMetadata")),
            {"method": "ModelConfig", "needs_token": True},
            *([{"method": "ModelStatistics", "needs_token": True}] if proxy.statistics else []),
        ],
        "http_errors": [
            {"status": status, "what": what, "text": text, "header": "WWW-Authenticate Bearer" if status == 401 else ""}
            for status, what, text in _HTTP_ERRORS
        ],
        "grpc_errors": [
            {"status": status, "grpc_status": number, "text": text} for status, number, text in _GRPC_ERRORS
        ],
        "models": [
            {"name": model.name, "streams": model.streams, "most_bytes": most_bytes[model.name]}
            for model in proxy.models
        ],
        # gRPC names the model inside the message, so that all have the largest limit.
        "image_bytes": max((most_bytes[model.name] for model in proxy.models if not model.streams), default=None),
        "has_streams": any(model.streams for model in proxy.models),
    }
    template = resources.files("onestream.serving.proxy") / "nginx_template.conf"
    return _filled(_COMMENT.sub("", template.read_text(encoding="utf-8")), values)


def _filled(template: str, values: Mapping[str, object]) -> str:
    def section(found: re.Match[str]) -> str:
        kind, name, inside = found.groups()
        value = values[name]
        if kind == "^":
            return "" if value else _filled(inside, values)
        several = value if isinstance(value, list) else [{}] if value else []
        return "".join(_filled(inside, {**values, **one}) for one in several)

    return _VARIABLE.sub(lambda found: str(values[found[1]]), _SECTION.sub(section, template))
