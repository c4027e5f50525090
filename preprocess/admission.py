"""What a definition lets in: the limits, and what its ``decode`` says of profiles, depths and frames."""

from __future__ import annotations

from dataclasses import replace

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage
from onestream.preprocess.headers.reader import Encoded, Header
from onestream.preprocess.limits import Limits
from onestream.preprocess.notices import say_once
from onestream.preprocess.operations import Decode

_PILLOW_EFFORT = 6.0
"""Of the conversion of a profile and of the copy for other backends, which take longest: 30 ns a pixel."""


def admit(data: Encoded, definition: Definition, limits: Limits) -> Header:
    """The header of an encoded image that may be decoded. What is passed over of it is said once.

    Raises ``BadImage`` naming the limit, or the field of ``decode``, that it breaks.
    """
    header, decode = limits.check(data), definition.source
    if not isinstance(decode, Decode):
        return header
    _check(header, decode)
    return replace(header, effort=header.effort + _PILLOW_EFFORT) if needs_pillow(header, decode) else header


def needs_pillow(header: Header, decode: Decode) -> bool:
    """Whether only Pillow does what ``decode`` asks of such a file."""
    return (decode.profile == "srgb" and header.profile is not None) or header.bits > decode.bits or header.by_pillow


def _check(header: Header, decode: Decode) -> None:
    if header.bits > decode.bits and not header.is_gray:
        raise BadImage(
            "unsupported_format",
            f"got a {header.format} in colour of {header.bits} bit; decode.bits {decode.bits} is for gray ones",
        )
    if header.has_more_frames:
        if decode.frame == "error":
            raise BadImage(
                "unsupported_format",
                f"got a {header.format} of several pages or frames; decode.frame is 'error', which allows one",
            )
        say_once(f"a {header.format} has several pages or frames, of which the first is used (decode.frame: first)")
    if header.profile == "other" and decode.profile == "ignore":
        say_once(
            f"a {header.format} carries an ICC profile, which is passed over as in training on PIL images "
            "(decode.profile: ignore)"
        )
    if header.bits > 8 and decode.bits == 16:
        say_once(
            f"a {header.format} has samples of {header.bits} bit, of which the high byte is used (decode.bits: 16); "
            "values of 12 bit would be near black"
        )
