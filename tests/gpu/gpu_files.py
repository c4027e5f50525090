"""Image files for the GPU suite."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """A file written by Pillow."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()
