"""Composes each frame of a matte's stream over its background, and encodes it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from onestream.postprocess.matte.composer import Composer, displayed, picture_window
from onestream.preprocess import Definition
from onestream.preprocess.geometry import Window
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.streams.stream import StreamFrame
from onestream.serving.pipeline import VideoOutput
from onestream.serving.video.encoder import Encoder, PictureTags, blank
from onestream.serving.video.stream_types import Tensors
from onestream.wire.tensor_names import MATTE, VIDEO

if TYPE_CHECKING:
    from onestream.postprocess.matte.composer_gpu import GpuComposer


class ComposedVideo:
    """Composes and encodes the frames of one stream, in the order of display.

    Frames whose picture is on a GPU are composed there by ``on_gpu``, others by ``composer``; they are equal in every
    bit, and one stream may have both. ``tags`` are those of the frames as displayed. Samples are at most cut to 8 bit,
    so they stay true.
    """

    def __init__(
        self,
        composer: Composer,
        definition: Definition,
        options: VideoOutput,
        *,
        fps: float,
        tags: PictureTags | None = None,
        on_gpu: GpuComposer | None = None,
    ) -> None:
        self._composer, self._on_gpu, self._definition = composer, on_gpu, definition
        self._encoder = Encoder(options, fps=fps, tags=tags)
        self._window: tuple[tuple[int, int], Window] | None = None

    def __call__(self, frame: StreamFrame, results: Tensors) -> tuple[Tensors, dict[str, Any]]:
        """The tensor ``video``, an H.264 picture as Annex B, and of its event ``key``, ``width`` and ``height``."""
        window = self._window_of(frame.size_hw)
        matte = results[MATTE][window.top : window.top + window.height, window.left : window.left + window.width]
        on_gpu, surface = self._on_gpu, frame.surface
        # Tagged, so that every reader sees the colours that the network saw and in which the background is written.
        colors = frame.colors
        planes = replace(
            frame.planes() if surface is None else surface.like,
            matrix_tag=colors.matrix_tag,
            full_range=colors.is_full_range,
        )
        if frame.orientation != Orientation():
            planes = displayed(planes, frame.orientation)
        picture, out = blank(planes)
        if surface is not None:
            assert on_gpu is not None, "who decodes on a GPU composes there"
            on_gpu.compose(surface, frame.orientation, matte, out)
        else:
            self._composer.compose(planes, matte, out)
        encoded = self._encoder.encode(picture, at_s=frame.pts_seconds)
        height, width = encoded.size_hw
        fields = {"key": encoded.is_key, "width": width, "height": height}
        return {VIDEO: np.frombuffer(encoded.data, np.uint8)}, fields

    def _window_of(self, size_hw: tuple[int, int]) -> Window:
        if self._window is None or self._window[0] != size_hw:
            self._window = size_hw, picture_window(self._definition, size_hw)
        return self._window[1]
