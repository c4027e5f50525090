"""Reads the images of a request: the body itself, a file of a form, or base64 in JSON with inputs beside them."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiohttp import web

from onestream.client import BadImage

MOST_IMAGES = 64
"""Images of one batch."""
BODY_PER_IMAGE = 2
"""A body may have as many bytes as so many of the largest images: room for base64, and for a batch of smaller ones."""

_EXPECTED = (
    'expected {"image": "BASE64"} or {"images": ["BASE64", …]}, perhaps with "inputs": {"NAME": NUMBERS or "BASE64"}; '
    "parameters go into the address, such as ?top_k=1"
)


@dataclass(frozen=True, slots=True)
class Body:
    """What a request holds.

    ``images`` is its image, as bytes or as base64, or the list of a batch, whose items are not yet checked. ``inputs``
    are the network's beside each image, by name.
    """

    images: bytes | str | list[Any]
    inputs: Mapping[str, Any] = field(default_factory=dict)


async def read_body(request: web.Request, max_image_bytes: int) -> Body:
    """What a request holds.

    The content decides, not its type, but for forms: no image file begins with a brace. Raises BadImage for what is
    too large or holds no image; other limits are the client's.
    """
    most = BODY_PER_IMAGE * max_image_bytes
    bounded = request.clone(client_max_size=most)
    try:
        if request.content_type == "multipart/form-data":
            return Body(await _file_of_form(bounded))
        body = await bounded.read()
    except web.HTTPRequestEntityTooLarge:
        text = f"the body has more than {most} bytes; of an image allowed are at most {max_image_bytes}"
        raise BadImage("too_large", text) from None
    return _in_json(body) if body.lstrip()[:1] in (b"{", b"[") else Body(body)


def decoded(image: Any) -> bytes:
    """The bytes of an image of ``Body``; of base64 also as a ``data:`` address and in lines. Raises BadImage."""
    if isinstance(image, bytes):
        return image
    if not isinstance(image, str):
        raise BadImage("bad_request", f"expected an image as base64, got {type(image).__name__}")
    head, _, content = image.rpartition(",")
    if head and not (head.startswith("data:") and head.endswith(";base64")):
        raise BadImage("bad_request", "a comma in what should be base64")
    try:
        return base64.b64decode("".join(content.split()), validate=True)
    except (binascii.Error, ValueError):
        raise BadImage("bad_request", "not base64") from None


def decoded_inputs(body: Body) -> dict[str, Any]:
    """Its inputs: images as bytes, and numbers as arrays, made once for all images of a batch. Raises BadImage.

    A text is an image and never numbers: the client would take it for the path of a file.
    """
    found: dict[str, Any] = {}
    for name, value in body.inputs.items():
        try:
            found[name] = decoded(value) if isinstance(value, str) else np.asarray(value)
        except BadImage as error:
            raise BadImage(error.code, f"{name:.80}: {error.reason}") from None
        except ValueError:
            raise BadImage("bad_request", f"{name:.80}: rows of different lengths, or too deep") from None
    return found


async def _file_of_form(request: web.Request) -> bytes:
    try:
        values = list((await request.post()).values())
    except (ValueError, AssertionError, RuntimeError, LookupError):
        raise BadImage("bad_request", "the form is damaged or cut short") from None
    if len(values) != 1 or not isinstance(values[0], web.FileField):
        text = f"a form with {len(values)} fields; expected one, a file; parameters go into the address"
        raise BadImage("bad_request", text)
    return values[0].file.read()


def _in_json(body: bytes) -> Body:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise BadImage("bad_request", f"the body is no JSON; {_EXPECTED}") from None
    match said:
        case {"image": str(image), **others} if not others.keys() - {"inputs"}:
            return Body(image, _inputs(others))
        case {"images": [*images], **others} if not others.keys() - {"inputs"}:
            if not 1 <= len(images) <= MOST_IMAGES:
                raise BadImage("bad_request", f"a batch of {len(images)} images; allowed are 1 to {MOST_IMAGES}")
            return Body(images, _inputs(others))
    raise BadImage("bad_request", _EXPECTED)


def _inputs(said: Mapping[Any, Any]) -> Mapping[str, Any]:
    inputs = said.get("inputs", {})
    if not isinstance(inputs, dict):
        raise BadImage("bad_request", f"inputs is {type(inputs).__name__}; {_EXPECTED}")
    return inputs
