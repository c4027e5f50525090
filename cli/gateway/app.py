"""The gateway: plain HTTP and JSON in front of a server, for callers without a client of Triton.

::

    POST /v1/pipelines/NAME     an image, a form with a file, {"image": "BASE64"} or {"images": ["BASE64", …]};
                                 in JSON "inputs": {NAME: NUMBERS} are the network's beside each image
    GET  /v1/pipelines          the pipelines that the server has ready
    GET  /health                whether the server is ready
    GET  /openapi.json, /docs   these routes

Errors are JSON, ``{"error": {"code": CODE, "reason": TEXT}}``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from importlib import resources
from typing import Any

import yaml
from aiohttp import web

from onestream.cli.demo_page.served import Form, Served
from onestream.cli.demo_page.service import HEADERS, refusal
from onestream.cli.gateway.bodies import decoded, decoded_inputs, read_body
from onestream.cli.options import read_parameters
from onestream.client import (
    AsyncClient,
    BadImage,
    CannotConnect,
    InvalidRequest,
    ModelNotFound,
    OnestreamError,
    ServerOverloaded,
    ServerUnavailable,
    TimedOut,
    UnsupportedInput,
)

OPEN_PER_IMAGE = 4
"""Requests that may be open, for each image that may be at the server; others are refused at once."""
_BODY_S = 30.0
_STATUSES: tuple[tuple[type[OnestreamError], int, str], ...] = (
    (ModelNotFound, 404, "unknown_pipeline"),
    (InvalidRequest, 400, "invalid_request"),
    (UnsupportedInput, 400, "invalid_request"),
    (ServerOverloaded, 429, "overloaded"),
    (ServerUnavailable, 503, "unavailable"),
    (CannotConnect, 503, "unavailable"),
    (TimedOut, 504, "timeout"),
    (OnestreamError, 502, "server_failed"),
)
_MAY_BE_SENT_AGAIN = (429, 503)
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Content-Type",
    "Access-Control-Max-Age": "600",
}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = logging.getLogger(__name__)


class Gateway:
    """The application for the server of ``served``.

    ``loopback``: only this machine reaches it, under one of its local names. Pages of ``origins`` may ask it.
    ``concurrency``: so many images are at the server at once.
    """

    def __init__(
        self,
        served: Served,
        *,
        loopback: bool = True,
        origins: Collection[str] = (),
        concurrency: int = 16,
        timeout_s: float | None = None,
    ) -> None:
        self._served, self._loopback, self._origins = served, loopback, origins
        self._client = AsyncClient(served.url, timeout_s=timeout_s)
        self._at_once = asyncio.Semaphore(concurrency)
        self._open, self._most_open = 0, OPEN_PER_IMAGE * concurrency

    def application(self) -> web.Application:
        """The application that aiohttp runs, with cancellation of handlers."""
        static = resources.files("onestream.cli.gateway") / "static"
        openapi, docs = ((static / name).read_text("utf-8") for name in ("openapi.yaml", "docs.html"))
        found = web.Application(middlewares=[self._guard])
        found.router.add_post("/v1/pipelines/{name}", self._predict)
        found.router.add_get("/v1/pipelines", self._pipelines)
        found.router.add_get("/health", self._health)
        found.router.add_get("/openapi.json", _constant(web.json_response, yaml.safe_load(openapi)))
        found.router.add_get("/docs", _constant(web.Response, text=docs, content_type="text/html"))
        found.cleanup_ctx.append(self._closing)
        return found

    async def _closing(self, _application: web.Application) -> AsyncIterator[None]:
        yield
        await self._client.close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Refuse pages of other origins, answer what their browsers ask before, and turn errors into JSON."""
        origin = request.headers.get("Origin")
        refused = refusal("gateway", request.host, origin, loopback=self._loopback, origins=self._origins)
        response: web.StreamResponse
        if refused:
            response = _failed(403, "forbidden", refused)
        elif request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            response = web.Response(status=204, headers=_PREFLIGHT)
        else:
            response = await _answered(request, handler)
        response.headers.update(HEADERS | {"Vary": "Origin"})
        if origin is not None and not refused:
            response.headers["Access-Control-Allow-Origin"] = origin
        return response

    async def _predict(self, request: web.Request) -> web.Response:
        if self._open >= self._most_open:
            text = f"{self._open} requests are open; send fewer at once, or later"
            raise ServerOverloaded(text, status="RESOURCE_EXHAUSTED")
        self._open += 1
        try:
            return web.json_response(await self._answer(request, request.match_info["name"]))
        except ModelNotFound:
            offer = await asyncio.to_thread(self._served.offer)
            raise offer.not_found(request.match_info["name"]) from None
        finally:
            self._open -= 1

    async def _answer(self, request: web.Request, pipeline: str) -> dict[str, Any]:
        try:
            parameters = read_parameters([f"{name}={value}" for name, value in request.query.items()], option="")
        except ValueError as error:
            raise InvalidRequest(str(error), status="INVALID_ARGUMENT") from None
        most = await self._client.max_body_bytes(pipeline)
        body = await asyncio.wait_for(read_body(request, most), _BODY_S)
        inputs = decoded_inputs(body)

        async def result(image: Any) -> dict[str, Any]:
            async with self._at_once:
                found = await self._client.predict(
                    decoded(image), pipeline=pipeline, inputs=inputs, parameters=parameters
                )
            return found.to_dict()

        async def item(image: Any) -> dict[str, Any]:
            try:
                return await result(image)
            except OnestreamError as error:
                return _error(*_told(error)[1:])

        if not isinstance(body.images, list):
            return await result(body.images)
        return {"results": await asyncio.gather(*map(item, body.images))}

    async def _pipelines(self, _request: web.Request) -> web.Response:
        offer = await asyncio.to_thread(self._served.offer)
        return web.json_response({"pipelines": [_described(form) for form in offer.forms.values()]})

    async def _health(self, _request: web.Request) -> web.Response:
        if not await self._client.is_ready():
            return _failed(503, "unavailable", f"the server at {self._served.url} is not ready")
        return web.json_response({"status": "ok"})


def _constant(response: Callable[..., web.Response], *content: Any, **options: Any) -> _Handler:
    async def answer(_request: web.Request) -> web.Response:
        return response(*content, **options)

    return answer


async def _answered(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """What the handler answers, or its error as JSON."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _failed(error.status, error.reason.lower().replace(" ", "_"), f"{request.method} {request.path:.150}")
    except asyncio.TimeoutError:
        return _failed(408, "timeout", f"the body took longer than {_BODY_S:g} s")
    except OnestreamError as error:
        return _failed(*_told(error))
    except ConnectionResetError:
        return _failed(499, "gone", "the caller closed the connection")
    except Exception:
        # Nothing of it is for the caller.
        _log.exception("%s %s", request.method, request.path)
        return _failed(500, "internal", "the gateway failed")


def _told(error: OnestreamError) -> tuple[int, str, str]:
    """Status, code and reason of an error."""
    if isinstance(error, BadImage):
        return 413 if error.code == "too_large" else 400, error.code, error.reason
    return next((status, code, str(error)) for kind, status, code in _STATUSES if isinstance(error, kind))


def _error(code: str, reason: str) -> dict[str, Any]:
    return {"error": {"code": code, "reason": reason}}


def _failed(status: int, code: str, reason: str) -> web.Response:
    again = {"Retry-After": "1"} if status in _MAY_BE_SENT_AGAIN else {}
    return web.json_response(_error(code, reason), status=status, headers=again)


def _described(form: Form) -> dict[str, Any]:
    """What a caller may want to know of a pipeline; ``parameters`` are None where its configuration does not say."""
    options = None if form.postprocess is None else form.postprocess.request_parameters
    return {
        "name": form.name,
        "kind": form.kind,
        "max_body_bytes": form.max_body_bytes,
        "inputs": {name: {"datatype": datatype, "shape": dims} for name, (datatype, dims) in form.inputs.items()},
        "parameters": options and {one.name: {"minimum": one.least, "maximum": one.most} for one in options},
    }
