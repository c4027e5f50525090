"""The letterbox of detectors: ultralytics' ``LetterBox`` with OpenCV's INTER_LINEAR, then ``x / 255``."""

from __future__ import annotations

from collections.abc import Sequence

from onestream.preprocess.definition import Definition
from onestream.preprocess.interop.common import assemble, pair, refusing
from onestream.preprocess.moves import Pad, Resize
from onestream.preprocess.operations import Decode, DType, Operation


@refusing()
def from_letterbox(
    size: int | Sequence[int] = 640,
    *,
    padding_value: int = 114,
    center: bool = True,
    scale_fill: bool = False,
    dtype: DType = "float32",
) -> Definition:
    """The input of a detector of the YOLO family: resized into ``size`` without antialiasing, padded, divided by 255.

    ``size`` is a side or [height, width]. The options are those of ``LetterBox(auto=False, scaleup=True)``: with
    ``scale_fill`` the picture is stretched to the size and nothing is padded. ``dtype`` is the network's. Raises
    ``CannotImport``.
    """
    height, width = pair(size, where="letterbox size")
    operations: list[Operation] = [Decode()]
    if scale_fill:
        operations.append(Resize(mode="exact", size=(height, width), antialias=False))
    else:
        operations.append(Resize(mode="fit", size=(height, width), antialias=False, rounding="ratio"))
        operations.append(Pad(size=(height, width), value=padding_value, align="center" if center else "top_left"))
    return assemble(operations, scale=255.0, steps=(), dtype=dtype)
