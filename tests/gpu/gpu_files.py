"""Image files for the GPU suite, and what goes to a GPU and back."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
from PIL import Image

from onestream.preprocess.cuda.device import DeviceArray, Stream


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """A file written by Pillow."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def uploaded(values: np.ndarray, stream: Stream) -> DeviceArray:
    """An array on the GPU, done."""
    staged, target = stream.pinned(values.shape, values.dtype), stream.allocate(values.shape, values.dtype)
    staged[...] = values
    stream.upload(staged, target)
    stream.sync()
    return target


def downloaded(arrays: Iterable[DeviceArray], stream: Stream) -> list[np.ndarray]:
    """What arrays of the GPU hold when all that is queued is done; waits once."""
    found = []
    for array in arrays:
        found.append(stream.pinned(array.shape, array.dtype))
        stream.download(array, found[-1])
    stream.sync()
    return found
