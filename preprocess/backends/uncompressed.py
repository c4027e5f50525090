"""Files that only Pillow decodes as a definition asks, made readable for libraries that decode by themselves."""

from __future__ import annotations

import io
from dataclasses import replace

from onestream.preprocess.admission import admit, needs_pillow
from onestream.preprocess.backends.reference import decode
from onestream.preprocess.definition import Definition
from onestream.preprocess.headers.reader import Encoded, Header
from onestream.preprocess.limits import Limits
from onestream.preprocess.memory import undecodable
from onestream.preprocess.operations import Decode


def admit_for_library(data: Encoded, definition: Definition, limits: Limits) -> tuple[Encoded, Header]:
    """``admit``, and the file that the library is to decode: ``data``, or the reference's pixels as they are.

    These are an uncompressed BMP, upright, so that every library has the same. Raises ``BadImage``.
    """
    header, source = admit(data, definition, limits), definition.source
    if not isinstance(source, Decode) or not needs_pillow(header, source):
        return data, header
    image = decode(data, header, source.model_copy(update={"color": "rgb"}))
    file = io.BytesIO()
    try:
        image.save(file, "BMP")
    except MemoryError as error:
        raise undecodable(header, "", error) from None
    pixels = replace(header, format="BMP", height=image.height, width=image.width, orientation=1, kept=())
    return file.getbuffer(), pixels
