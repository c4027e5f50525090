"""Frames of videos for rows of patches: all frames of one are resized to one size, which their number may change."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.preprocess.backends.base import FromPicture
from onestream.preprocess.definition import WHOLE_PICTURE, Definition
from onestream.preprocess.errors import BadImage, CannotCompile
from onestream.preprocess.geometry import Size
from onestream.preprocess.limits import Limits
from onestream.preprocess.moves import Resize
from onestream.preprocess.operations import Output, Patches
from onestream.preprocess.patches.batch import Planned
from onestream.preprocess.patches.pictures import (
    Decoders,
    Picture,
    Pixels,
    check_size,
    checked,
    from_picture,
    is_decoded,
)

Video = list[Picture] | npt.NDArray[np.uint8]
"""The frames of a video in order: a list of pictures, or uint8 (frames, height, width, 3), RGB."""
VideoSize = tuple[int, int, int]
"""Frames, height and width."""


def is_video(item: Any) -> bool:
    """Whether it is frames, and not a picture."""
    return isinstance(item, list) or (isinstance(item, np.ndarray) and item.ndim == 4)


class Videos:
    """Plans the frames of videos. Raises ``CannotCompile`` for a definition that does more than resize and cut rows."""

    def __init__(self, definition: Definition, patches: Patches, limits: Limits) -> None:
        resize, *others = definition.geometry or (None,)
        if others or not isinstance(resize, Resize) or patches.pads:
            raise CannotCompile(
                "videos take a definition of one resize, and patches in rows without pad_to; got "
                + ", ".join(operation.op for operation in definition.operations)
            )
        self._definition, self._patches, self._limits, self._resize = definition, patches, limits, resize
        # The pictures that what follows takes are RGB, whatever the definition's colour.
        source = definition.source.model_copy(update={"color": "rgb", "dct_scaling": False})
        self._whole = Definition(operations=(source, *WHOLE_PICTURE.operations[1:]))
        self._decoders = Decoders(self._whole, limits)

    def close(self) -> None:
        """Release what it holds."""
        self._decoders.close()

    def size(self, size: VideoSize) -> Size:
        """The size to which frames are resized. Raises ``BadImage``."""
        resized_hw = self._resize.resized(check_size(size[1:], self._limits), size[0])
        self._limits.check_resized(resized_hw)
        return resized_hw

    def plan(self, video: Video | VideoSize) -> Planned:
        """What is to be done with a video, from the headers of its frames, or of one of a size. Raises ``BadImage``."""
        frames, size = ([], video) if isinstance(video, tuple) else self._measured(video)
        resized_hw = self.size(size)
        grid, temporal = self._patches.grid(resized_hw, size[0]), self._patches.temporal
        exact = Resize(
            mode="exact", size=resized_hw, filter=self._resize.filter, arithmetic=self._resize.arithmetic,
            antialias=self._resize.antialias,
        )  # fmt: skip
        definition = Definition(operations=(self._definition.source, exact, Output(layout="NHWC", dtype="uint8")))
        resizer, starts = from_picture(definition, self._limits), range(0, len(frames), temporal)
        steps = [partial(self._step, frames, start, start + temporal, resizer) for start in starts]
        return Planned(grid, steps, (size[1], size[2]))

    def _measured(self, video: Video) -> tuple[list[Picture], VideoSize]:
        frames: list[Picture] = []
        sizes: list[Size] = []
        for number, frame in enumerate(video):
            try:
                picture, size_hw = checked(frame, self._whole, self._limits)
            except BadImage as error:
                raise error.named(f"frame {number}") from None
            frames.append(picture)
            sizes.append(size_hw)
            if size_hw != sizes[0]:
                (height, width), (first, second) = size_hw, sizes[0]
                raise BadImage("corrupt", f"frame {number} is {width}x{height} pixels, frame 0 is {second}x{first}")
        if not frames:
            raise BadImage("empty", "got a video without frames")
        return frames, (len(frames), *sizes[0])

    def _step(self, frames: Sequence[Picture], first: int, end: int, resizer: FromPicture) -> Pixels | BadImage:
        """The frames of one step along time, (frames, height, width, c)."""
        made = []
        for number, frame in enumerate(frames[first:end], start=first):
            pixels = frame if is_decoded(frame) else self._decoders.run(frame)
            if isinstance(pixels, BadImage):
                return pixels.named(f"frame {number}")
            made.append(resizer.run(pixels))
        return np.stack(made)
