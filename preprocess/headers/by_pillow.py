"""GIF, AVIF and HEIC: Pillow, which alone decodes them here, reads their headers as well, and no pixels for it."""

from __future__ import annotations

import io
from importlib.util import find_spec

from PIL import Image, features

from onestream.preprocess.errors import BadImage, OutOfMemory
from onestream.preprocess.headers.base import Header, ImageFormat, SizeCheck, corrupt, profile_in, unsupported
from onestream.wire.install import install_command
from onestream.wire.refusals import MAY_BE_SENT_AGAIN

_EFFORT: dict[ImageFormat, float] = {"GIF": 3.0, "AVIF": 8.0, "HEIC": 8.0}
_ORIENTATION_TAG = 0x0112


def open_image(file: bytes | memoryview, name: ImageFormat) -> Image.Image:
    """Open a file of a format by Pillow, which is given the library that reads HEIC. Raises what Pillow raises."""
    if name == "HEIC":
        import pillow_heif

        pillow_heif.register_heif_opener()
    return Image.open(io.BytesIO(file), formats=["HEIF" if name == "HEIC" else name.upper()])


def read(view: memoryview, check_size: SizeCheck, name: ImageFormat) -> Header:
    """The header of a file that begins like this format."""
    if name == "AVIF" and not features.check("avif"):
        raise unsupported("AVIF, which this Pillow does not read", "others; with Pillow 11.3 or later AVIF, too")
    if name == "HEIC" and find_spec("pillow_heif") is None:
        raise unsupported("HEIC, which takes pillow-heif", f"others; or run {install_command('heif')}")
    try:
        with open_image(view, name) as image:
            check_size(image.height, image.width)
            orientation = image.getexif().get(_ORIENTATION_TAG, 1)
            profile = image.info.get("icc_profile")
            return Header(
                name,
                image.height,
                image.width,
                orientation if orientation in range(1, 9) else 1,
                effort=_EFFORT[name],
                profile=profile_in(memoryview(profile)) if profile else None,
                has_more_frames=bool(getattr(image, "is_animated", False)),
                by_pillow=True,
            )
    except BadImage:
        raise
    except MemoryError:
        raise OutOfMemory(f"too little memory is free to read a {name}{MAY_BE_SENT_AGAIN}") from None
    except Exception as error:  # Pillow raises errors of any kind on damaged files
        reason = str(error).partition("<_io")[0].strip() or type(error).__name__
    # Raised here, it does not keep Pillow's error, which keeps the file.
    raise corrupt(f"the {name} header cannot be read: {reason}")
