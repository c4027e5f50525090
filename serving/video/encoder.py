"""Encodes composed frames as H.264, each as soon as it is there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import av
from av.video.frame import PictureType, VideoFrame

from onestream.postprocess.planes import subsampled
from onestream.preprocess.geometry import Size
from onestream.preprocess.video.common.color import RANGE_TAGS, UNSPECIFIED, Planes, planes_of
from onestream.serving.stream_options import VideoOutput

_FORMATS = {(1, 1): "yuv420p", (0, 1): "yuv422p", (1, 0): "yuv440p", (0, 0): "yuv444p"}
"""By log2 of the chroma's vertical and horizontal subsampling."""

_ENCODED_FORMAT = "yuv420p"
"""What every player can decode."""

_USUAL_FPS = 30.0


@dataclass(frozen=True, slots=True)
class Encoded:
    """One coded picture as Annex B; a key picture carries its parameter sets. ``size_hw`` as displayed."""

    data: bytes
    is_key: bool
    size_hw: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureTags:
    """What coded pictures say of themselves beside their matrix and range.

    ``primaries`` and ``transfer`` are codes of H.273, 2 where nothing is known; ``sample_aspect_ratio`` is the width of
    a pixel divided by its height.
    """

    primaries: int = UNSPECIFIED
    transfer: int = UNSPECIFIED
    sample_aspect_ratio: Fraction = Fraction(1)


class Encoder:
    """One stream of H.264 without any delay: a picture in, its packet out.

    A change of the pictures' size or colours begins anew, with a key picture. ``fps`` is what the stream declares, 0
    for nothing. An instance is not thread-safe.
    """

    def __init__(self, options: VideoOutput, *, fps: float = 0.0, tags: PictureTags | None = None) -> None:
        self._options, self._fps = options, fps if 0 < fps < 1000 else _USUAL_FPS
        self._tags = tags or PictureTags()
        self._context: Any = None
        self._kind: object = None
        self._count = 0
        self._key_s = 0.0

    def encode(self, picture: VideoFrame, *, at_s: float | None) -> Encoded:
        """Encode a picture that is shown at ``at_s`` seconds.

        It is made 4:2:0 where it is not, and loses an odd last row and column.
        """
        picture = even(picture)
        if picture.format.name != _ENCODED_FORMAT:
            picture = _to_420(picture)
        kind = (picture.width, picture.height, int(picture.colorspace), int(picture.color_range))
        shown_s = self._count / self._fps if at_s is None else at_s
        fresh = kind != self._kind
        if fresh:
            self._context, self._kind = self._open(picture), kind
        # Where the clock is set back, the next key picture must not wait for it.
        due = fresh or not 0 <= shown_s - self._key_s < self._options.keyframe_s
        picture.pict_type = PictureType.I if due else PictureType.NONE
        picture.pts, picture.time_base = self._count, self._context.time_base
        self._count += 1
        (packet,) = self._context.encode(picture)
        if packet.is_keyframe:
            self._key_s = shown_s
        return Encoded(bytes(packet), packet.is_keyframe, (picture.height, picture.width))

    def _open(self, picture: VideoFrame) -> Any:
        context: Any = av.CodecContext.create("libx264", "w")
        context.width, context.height, context.pix_fmt = picture.width, picture.height, _ENCODED_FORMAT
        context.framerate = Fraction(self._fps).limit_denominator(100_000)
        context.time_base = 1 / context.framerate
        context.color_range, context.colorspace = int(picture.color_range), int(picture.colorspace)
        context.color_primaries, context.color_trc = self._tags.primaries, self._tags.transfer
        context.sample_aspect_ratio = self._tags.sample_aspect_ratio
        # Streams share the machine; one thread each serves more of them, and gives each frame back at once.
        context.thread_count = 1
        # Key pictures come by the clock.
        context.gop_size = 1 << 20
        context.options = {**self._options.libx264_options, "forced-idr": "1"}
        return context


def blank(like: Planes) -> tuple[VideoFrame, Planes]:
    """A picture of 8 bits of the size, the chroma and the colours of another, and its planes to write into."""
    picture = VideoFrame(like.size_hw[1], like.size_hw[0], _FORMATS[like.shifts])
    picture.color_range = RANGE_TAGS[like.full_range]
    picture.colorspace = like.matrix_tag
    return picture, replace(planes_of(picture), matrix_tag=like.matrix_tag, full_range=like.full_range)


def even(picture: VideoFrame) -> VideoFrame:
    """The picture without an odd last row and column, which 4:2:0 cannot have."""
    if picture.height % 2 == 0 and picture.width % 2 == 0:
        return picture
    whole = planes_of(picture)
    cut, planes = blank(replace(whole, size_hw=(picture.height // 2 * 2, picture.width // 2 * 2)))
    chroma = subsampled(planes.size_hw, planes.shifts)
    for (height, width), before, after in zip(
        (planes.size_hw, chroma, chroma), (whole.y, whole.u, whole.v), (planes.y, planes.u, planes.v), strict=True
    ):
        after[:height, :width] = before[:height, :width]
    return cut


def _to_420(picture: VideoFrame) -> VideoFrame:
    """Chroma halved in both directions; the samples' range and matrix stay what they are."""
    range_, matrix = int(picture.color_range), int(picture.colorspace)
    halved = picture.reformat(format=_ENCODED_FORMAT, src_color_range=range_, dst_color_range=range_)
    halved.color_range, halved.colorspace = range_, matrix
    return halved
