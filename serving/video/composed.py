"""Works on each frame of a stream, and encodes it: a matte's composition, or a detection's boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onestream.postprocess.frames import FrameWork
from onestream.postprocess.planes import displayed
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.streams.stream import StreamFrame
from onestream.serving.stream_options import VideoOutput
from onestream.serving.video.encoder import Encoder, PictureTags, blank
from onestream.serving.video.stream_types import Tensors
from onestream.wire.tensor_names import VIDEO


class ComposedVideo:
    """Works on the frames of one stream and encodes them, in the order of display.

    ``tags`` are those of the frames as displayed. Samples are at most cut to 8 bit, so they stay true. The results
    named by ``beside`` leave with the picture.
    """

    def __init__(
        self,
        work: FrameWork,
        options: VideoOutput,
        *,
        fps: float,
        tags: PictureTags | None = None,
        beside: Sequence[str] = (),
    ) -> None:
        self._work, self._beside = work, beside
        self._encoder = Encoder(options, fps=fps, tags=tags)

    def __call__(self, frame: StreamFrame, results: Tensors) -> tuple[Tensors, dict[str, Any]]:
        """The tensors that leave, of which ``video`` is an H.264 picture as Annex B; of its event ``key``, ``width``
        and ``height``.
        """
        surface = frame.surface
        # Tagged, so that every reader sees the colours that the network saw and in which is written what is added.
        colors = frame.colors
        planes = replace(
            frame.planes() if surface is None else surface.like,
            matrix_tag=colors.matrix_tag,
            full_range=colors.is_full_range,
        )
        if frame.orientation != Orientation():
            planes = displayed(planes, frame.orientation)
        picture, out = blank(planes)
        if surface is None:
            self._work.write(planes, results, out)
        else:
            self._work.write_surface(surface, frame.orientation, results, out)
        encoded = self._encoder.encode(picture, at_s=frame.pts_seconds)
        height, width = encoded.size_hw
        fields = {"key": encoded.is_key, "width": width, "height": height}
        beside = {name: results[name] for name in self._beside}
        return {VIDEO: np.frombuffer(encoded.data, np.uint8), **beside}, fields
