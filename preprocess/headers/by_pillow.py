"""GIF and AVIF: Pillow, which alone decodes them here, reads their headers as well, and no pixels for it."""

from __future__ import annotations

import io

from PIL import Image, features

from onestream.preprocess.headers.base import Header, ImageFormat, SizeCheck, corrupt, unsupported

_EFFORT: dict[ImageFormat, float] = {"GIF": 3.0, "AVIF": 8.0}
_ORIENTATION_TAG = 0x0112


def read(view: memoryview, check_size: SizeCheck, name: ImageFormat) -> Header:
    """The header of a file that begins like this format."""
    if name == "AVIF" and not features.check("avif"):
        raise unsupported("AVIF, which this Pillow does not read", "others; with Pillow 11.3 or later AVIF, too")
    try:
        with Image.open(io.BytesIO(view), formats=[name]) as image:
            check_size(image.height, image.width)
            orientation = image.getexif().get(_ORIENTATION_TAG, 1)
            return Header(
                name,
                image.height,
                image.width,
                orientation if orientation in range(1, 9) else 1,
                effort=_EFFORT[name],
                profile="other" if image.info.get("icc_profile") else None,
                has_more_frames=bool(getattr(image, "is_animated", False)),
                by_pillow=True,
            )
    except (OSError, SyntaxError, EOFError, KeyError, RuntimeError) as error:
        reason = str(error).partition("<_io")[0].strip()
    raise corrupt(f"the {name} header cannot be read: {reason}")
