"""The settings of a proxy as one value: who may ask for what, how much, and for how long."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format

from onestream.serving.built.triton_config import bytes_beside_images, from_text, pictures_of
from onestream.serving.built.versions import VERSION_OF
from onestream.serving.errors import BadProxy
from onestream.wire.limits import DEFAULT_MAX_BODY_BYTES, MAX_BODY_BYTES_PARAMETER

REQUEST_OVERHEAD_BYTES = 64 * 1024
"""What a request may hold beside the image: names, shapes and parameters."""

_NAME = re.compile(r"[\w.-]+", re.ASCII)
_ADDRESS = re.compile(r"(?P<host>[\w.-]+|\[[0-9a-fA-F:.]+\]):(?P<port>\d{1,5})", re.ASCII)
PATH = re.compile(r"[\w./+@%=:,-]+")
"""Paths that may stand in a configuration of nginx as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicModel:
    """A model that others may call.

    Attributes:
        name: letters, digits, ``_``, ``.`` and ``-``.
        max_body_bytes: of the images of one request and the network's inputs beside them, > 0.
        streams: it is called by streams of video, over gRPC only.
    """

    name: str
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    streams: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """A proxy before one server. Paths and addresses are checked for their form only, so it may be made anywhere.

    Attributes:
        models: what others may call; everything else is closed.
        listen: ``host:port``. With TLS both protocols are served there, without it only HTTP.
        grpc_listen: ``host:port`` of gRPC without TLS; empty with TLS.
        listen_file: file for nginx with its ``listen`` and certificate, in the place of the fields for these; or empty.
        certificate: PEM file, the authority's certificates after the server's own; empty for no TLS.
        key: PEM file of its private key; empty for no TLS.
        tokens: file of tokens (``onestream.serving.proxy.tokens``); empty lets everyone in.
        metrics_listen: ``host:port`` where the server's metrics are passed on, without TLS and tokens, or empty.
        http: ``host:port`` of the server's HTTP service.
        grpc: of its gRPC service.
        metrics: of its metrics.
        statistics: whether the models' statistics may be read.
        health_needs_token: whether liveness and readiness of the server need a token like everything else.
        timeout_s: how long the server may take for an answer, > 0.
        slow_client_s: how long a client may pause while it sends or reads, > 0. Streams of video may pause for an hour:
            their models end those that are idle.
        requests_per_caller: how many requests and video streams one caller may have at once, > 0. A caller is an
            address with a token's name.
        access_log: file that receives a line for each request, or *off*.

    Raises:
        BadProxy: they do not go together, or hold what cannot be written into a configuration.
    """

    models: tuple[PublicModel, ...]
    listen: str = "127.0.0.1:8443"
    grpc_listen: str = ""
    listen_file: str = ""
    certificate: str = ""
    key: str = ""
    tokens: str = ""
    metrics_listen: str = ""
    http: str = "127.0.0.1:8000"
    grpc: str = "127.0.0.1:8001"
    metrics: str = "127.0.0.1:8002"
    statistics: bool = False
    health_needs_token: bool = False
    timeout_s: int = 60
    slow_client_s: int = 10
    requests_per_caller: int = 64
    access_log: str = "/dev/stdout"

    def __post_init__(self) -> None:
        if not self.models:
            raise BadProxy("a proxy needs at least one model; got none")
        for model in self.models:
            if not _NAME.fullmatch(model.name):
                raise BadProxy(f"model {model.name!r}: a name has letters, digits, '_', '.' and '-' only")
        for address in filter(None, (*self.listens, self.http, self.grpc, self.metrics)):
            split_address(address)
        for path in filter(None, (self.listen_file, self.certificate, self.key, self.tokens, self.access_log)):
            if not PATH.fullmatch(path):
                raise BadProxy(f"{path!r}: a path may not hold spaces, quotes or other signs that nginx reads")
        if bool(self.certificate) != bool(self.key):
            raise BadProxy("TLS needs a certificate and its key; one of them is missing")
        if self.has_tls and self.grpc_listen:
            raise BadProxy(f"with TLS one port serves both protocols; {self.grpc_listen} for gRPC is one too many")
        if self.listen_file and (self.has_tls or self.grpc_listen):
            raise BadProxy(f"{self.listen_file} says where it listens; {self.certificate or self.grpc_listen} does too")
        if not (self.has_tls or self.grpc_listen or self.listen_file):
            raise BadProxy("without TLS gRPC needs an address of its own (--grpc-listen)")
        if self.timeout_s < 1 or self.slow_client_s < 1:
            raise BadProxy(f"timeouts of {self.timeout_s} s and {self.slow_client_s} s; expected 1 or more")
        if self.requests_per_caller < 1:
            raise BadProxy(f"{self.requests_per_caller} requests of a caller at once; expected 1 or more")

    @property
    def has_tls(self) -> bool:
        """Whether it encrypts."""
        return bool(self.certificate)

    @property
    def listens(self) -> tuple[str, ...]:
        """Every address where it listens."""
        return tuple(filter(None, (self.listen, self.grpc_listen, self.metrics_listen)))


def split_address(address: str) -> tuple[str, int]:
    """Host without brackets, and port, of ``host:port`` or ``[IPv6]:port``.

    Raises:
        BadProxy: it is none.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise BadProxy(f"{address!r} is no address; expected HOST:PORT, such as 0.0.0.0:8443 or [::]:8443")
    return match["host"].strip("[]"), int(match["port"])


def public_models(repository: Path, names: Sequence[str] | None = None) -> tuple[PublicModel, ...]:
    """The models of a repository that are made for callers, sorted by name.

    Args:
        repository: folder of models.
        names: exactly these instead of the pipelines (NAME, NAME_fused and NAME_video, without the steps and
            without later versions, which are reached by these names).

    Raises:
        BadProxy: there is none, or not one of ``names``, or a configuration cannot be read.
    """
    found: dict[str, PublicModel] = {}
    for path in sorted(repository.glob("*/config.pbtxt")):
        name = path.parent.name
        try:
            config = from_text(path.read_text(encoding="utf-8"))
        except (text_format.ParseError, UnicodeDecodeError) as error:
            raise BadProxy(f"{path} is no model configuration: {error}") from None
        parameters = {key: value.string_value for key, value in config.parameters.items()}
        pipeline = parameters.get("pipeline")
        if VERSION_OF in parameters and names is None:
            continue
        if name in names if names is not None else name in (pipeline, f"{pipeline}_fused", f"{pipeline}_video"):
            stated = parameters.get(MAX_BODY_BYTES_PARAMETER, "")
            limit = int(stated) if stated.isdecimal() else DEFAULT_MAX_BODY_BYTES
            streams = bool(config.model_transaction_policy.decoupled)
            most = limit * (1 + len(pictures_of(config))) + bytes_beside_images(config)
            found[name] = PublicModel(name=name, max_body_bytes=most, streams=streams)
    missing = sorted(set(names or ()) - found.keys())
    if missing:
        raise BadProxy(f"no model {missing[0]!r} in {repository}; expected a folder with a config.pbtxt")
    if not found:
        raise BadProxy(f"no pipeline in {repository}; run `onestream build`, or name models with --model")
    return tuple(found.values())
