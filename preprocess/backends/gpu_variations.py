"""Variations of decoded pictures on a GPU: every bit is the reference's, a batch in few launches.

Boxes are resized by Pillow's arithmetic and mirrored on the way; other transforms are made smaller by it and then
sampled by the kernel that rectifies regions. Changes of levels follow, step by step. On a GPU it was **not measured**:
its kernels ran by a C++ compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onestream.preprocess.cuda.changes import LevelChanges
from onestream.preprocess.cuda.device import DeviceArray, Stream
from onestream.preprocess.cuda.rectify import Rectify, ToRectify
from onestream.preprocess.cuda.resize import PillowResize, ToResize
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotCompile
from onestream.preprocess.geometry import Size, Window
from onestream.preprocess.moves import Resize
from onestream.preprocess.plan import Placement
from onestream.preprocess.variation import Variation, canvas_of, resize_of, sampling


@dataclass(frozen=True, slots=True)
class ToVary:
    """A decoded picture, (height, width, 3) uint8 RGB interleaved, and the canvas, (height, width, channels) uint8."""

    source: DeviceArray
    variation: Variation
    canvas: DeviceArray


class GpuVariations:
    """Varies pictures for one definition on one stream; belongs to its thread. Nothing waits.

    Raises ``ValueError`` where the definition's output size depends on the image.
    """

    def __init__(self, definition: Definition, *, stream: Stream) -> None:
        self._stream, self._canvas_hw = stream, canvas_of(definition)
        self._channels, to_bgr = definition.output_spec.channels, definition.color == "bgr"
        resize = resize_of(definition, self._canvas_hw)
        self._boxes = PillowResize(resize, channels=self._channels, to_bgr=to_bgr, stream=stream)
        # Of sizes that do not change, gray is made of colours and nothing else.
        triangle = Resize(mode="exact", size=self._canvas_hw)
        self._shrink = PillowResize(triangle, channels=self._channels, stream=stream)
        self._sample = Rectify(stream, channels=self._channels, to_bgr=to_bgr)
        self._changes = LevelChanges(stream, bgr=to_bgr)

    def enqueue(self, items: Sequence[ToVary]) -> None:
        """Queue a batch. The pictures must stay until the stream has passed.

        Raises ``CannotCompile`` for what the kernels lack: a change, a warp, and a canvas that is not the definition's.
        """
        boxes: list[ToResize] = []
        smaller: list[ToResize] = []
        sampled: list[ToRectify] = []
        for item in items:
            variation, size_hw = item.variation, (item.source.shape[0], item.source.shape[1])
            if variation.warp is not None or variation.canvas_hw not in (None, self._canvas_hw):
                lacking = "warp" if variation.warp is not None else "several samples on one canvas"
                raise CannotCompile(f"cvcuda on a GPU lacks {lacking}; device='cpu' can")
            box = variation.box_in(size_hw)
            if box is not None:
                boxes.append(_whole(_cut(item.source, box), item.canvas, variation.flip, variation.upside_down))
                continue
            found = sampling(variation, self._canvas_hw, size_hw)
            source = _cut(item.source, found.window)
            if self._channels == 1 or found.shrunk_hw != (found.window.height, found.window.width):
                shrunk = self._stream.allocate((*found.shrunk_hw, self._channels), np.uint8)
                smaller.append(_whole(source, shrunk))
                source = shrunk
            sampled.append(ToRectify(source, found.transform, item.canvas, fill=variation.fill))
        self._boxes.enqueue(boxes)
        self._shrink.enqueue(smaller)
        self._sample.enqueue(sampled)
        self._changes.enqueue([(item.canvas, item.variation.changes) for item in items])


def _cut(picture: DeviceArray, window: Window) -> DeviceArray:
    return picture.window(window.top, window.left, window.height, window.width)


def _whole(source: DeviceArray, target: DeviceArray, flip: bool = False, upside_down: bool = False) -> ToResize:
    """All of a picture to all of a target."""
    source_hw, target_hw = (_size(source), _size(target))
    placement = Placement(source_hw, target_hw, Window(0, 0, *target_hw), (0, 0), target_hw)
    return ToResize(source, placement, target, flip, upside_down)


def _size(array: DeviceArray) -> Size:
    return array.shape[0], array.shape[1]
