"""The page's own small web server: one HTML page with its files, and three questions that the page asks.

::

    GET  /api/pipelines         what the server offers, the sample photos, the colours of the heat maps
    GET  /api/samples/NAME      one of the photos that come with the package
    POST /api/look?form=NAME    the body is an image file: everything that the page shows about it

Errors are JSON, ``{"error": TEXT, "again": whether to try again}``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import TYPE_CHECKING, Any

from aiohttp import web

from onestream.cli.demo_page.inspect_image import legend, look
from onestream.cli.demo_page.served import Form, Served
from onestream.cli.demo_page.service import HEADERS, refusal
from onestream.client import (
    BadImage,
    CannotConnect,
    ModelNotFound,
    OnestreamError,
    ServerOverloaded,
    ServerUnavailable,
    TimedOut,
    UnexpectedResponse,
    UnsupportedInput,
)
from onestream.serving.photos import bundled_photos

if TYPE_CHECKING:
    from onestream.preprocess.training import Augmentation

_FILES = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js"}
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_CHUNK_BYTES = 64 * 1024
_PASSING = (CannotConnect, TimedOut, ServerUnavailable, ServerOverloaded)

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Page:
    """The application for one Triton server, and a chain as ``look`` takes it.

    ``loopback``: only this machine reaches it, under one of its local names.

    The server is asked about one image at a time, so that the milliseconds of one are not those of another.
    """

    def __init__(self, served: Served, chain: Augmentation | str, *, loopback: bool = True) -> None:
        self._served, self._chain, self._loopback = served, chain, loopback
        self._samples = bundled_photos()
        self._one_at_a_time = asyncio.Lock()

    def application(self) -> web.Application:
        """The application that aiohttp runs."""
        found = web.Application(middlewares=[self._guard])
        folder = resources.files("onestream.cli.demo_page") / "static"
        for path, name in _FILES.items():
            found.router.add_get(path, _file((folder / name).read_bytes(), _TYPES[name.rpartition(".")[2]]))
        found.router.add_get("/api/pipelines", self._pipelines)
        found.router.add_get("/api/samples/{name}", self._sample)
        found.router.add_post("/api/look", self._look)
        return found

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Refuse what other web sites send through this machine's browser, and turn errors into JSON."""
        if refused := refusal("page", request.host, request.headers.get("Origin"), loopback=self._loopback):
            return _failed(refused, 403)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            response = _failed(error.reason, error.status)
        except ConnectionResetError:
            # As when another picture is chosen meanwhile.
            response = _failed("the caller closed the connection", 499)
        except BadImage as error:
            response = _failed(str(error), 413 if error.code == "too_large" else 422)
        except UnsupportedInput as error:
            response = _failed(str(error), 422)
        except ModelNotFound as error:
            response = _failed(str(error), 404)
        except OnestreamError as error:
            passing = isinstance(error, _PASSING)
            response = _failed(str(error), 503 if passing else 502, again=passing)
        response.headers.update(HEADERS)
        return response

    async def _pipelines(self, _request: web.Request) -> web.Response:
        offer = await asyncio.to_thread(self._served.offer)
        usable = [form for form in offer.forms.values() if not form.inputs]
        unreadable = [*offer.unreadable.values(), *(_why_not(form) for form in offer.forms.values() if form.inputs)]
        if not usable:
            text = f"the server at {self._served.url} has no pipeline ready that takes images"
            return _failed("; ".join([text, *unreadable]), 503, again=True)
        found = {
            "server": self._served.url,
            "pipelines": [
                {"name": form.name, "digest": "" if form.stages else form.definition.digest} for form in usable
            ],
            "unreadable": unreadable,
            "samples": list(self._samples),
            "legend": legend(),
        }
        return web.json_response(found)

    async def _sample(self, request: web.Request) -> web.Response:
        photo = self._samples.get(request.match_info["name"])
        if photo is None:
            return _failed(f"no such photo; there are {', '.join(self._samples)}", 404)
        return web.Response(body=photo, content_type="image/jpeg")

    async def _look(self, request: web.Request) -> web.Response:
        form = await self._form(request.query.get("form", ""))
        image = await _body(request, form.max_body_bytes)
        async with self._one_at_a_time:
            if request.transport is None:
                raise ConnectionResetError
            return web.json_response(await asyncio.to_thread(look, self._served, form, image, self._chain))

    async def _form(self, name: str) -> Form:
        # Asked anew each time: a server that was restarted or rolled out may serve something else.
        offer = await asyncio.to_thread(self._served.offer)
        if name in offer.unreadable:
            raise UnexpectedResponse(offer.unreadable[name])
        if name not in offer.forms:
            raise offer.not_found(name)
        form = offer.forms[name]
        if form.inputs:
            raise UnsupportedInput(_why_not(form))
        return form


def _why_not(form: Form) -> str:
    """Why the page does not ask a form, whose network takes more of a request than its image."""
    return (
        f"pipeline {form.name!r} takes {', '.join(form.inputs)} with each picture, which this page does not send; ask "
        "it by onestream predict --input NAME=VALUE"
    )


async def _body(request: web.Request, most_bytes: int) -> bytes:
    """The image sent. What is too large is read to its end and dropped: a browser hears no answer before that."""
    kept, size = bytearray(), 0
    async for chunk in request.content.iter_chunked(_CHUNK_BYTES):
        size += len(chunk)
        if size <= most_bytes:
            kept += chunk
        else:
            kept.clear()
    if size > most_bytes:
        raise BadImage("too_large", f"{size} bytes, allowed are at most {most_bytes}")
    return bytes(kept)


def _file(content: bytes, kind: str) -> _Handler:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=content, content_type=kind, charset="utf-8")

    return answer


def _failed(text: str, status: int, *, again: bool = False) -> web.Response:
    fields: dict[str, Any] = {"error": text, "again": again}
    return web.json_response(fields, status=status)
