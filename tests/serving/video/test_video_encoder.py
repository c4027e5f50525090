"""Composed frames to H.264: every picture at once, decodable, of the right colours, with key pictures by the clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from model_in_process import pictures

from onestream.postprocess.matte.background import Color
from onestream.postprocess.matte.composer import Composer, MatteComposition, picture_window
from onestream.preprocess import Definition
from onestream.preprocess.video.common.color import ColorRule, Colors, Planes, planes_of, to_rgb
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.streams.stream import StreamFrame
from onestream.serving.stream_options import VideoOutput
from onestream.serving.video.composed import ComposedVideo
from onestream.serving.video.encoder import Encoder, blank
from onestream.wire.tensor_names import MATTE, VIDEO

SHIFTS = {"4:2:0": (1, 1), "4:2:2": (0, 1), "4:4:0": (1, 0), "4:4:4": (0, 0)}
DEFINITION = Definition.model_validate(
    {"operations": [{"op": "decode"}, {"op": "letterbox", "size": [32, 32], "value": 0, "filter": "bilinear"}]}
)
BEST = VideoOutput(crf=1)
AS_TAGGED = Colors("bt709", "limited", "file", "file")


def scene(size_hw: tuple[int, int], shifts: tuple[int, int] = (1, 1), *, depth: int = 8, full: bool = False) -> Planes:
    """Brightness falls from left to right, one chroma from top to bottom; nothing is finer than a 4:2:0 sample."""
    height, width = size_hw
    chroma = -(-height >> shifts[0]), -(-width >> shifts[1])
    step = 1 << depth - 8
    dtype = np.uint8 if depth == 8 else np.uint16
    y = np.broadcast_to(np.linspace(200, 60, width), size_hw) * step
    u = np.broadcast_to(np.linspace(90, 160, chroma[0])[:, None], chroma) * step
    v = np.full(chroma, 120 * step)
    return Planes(y.astype(dtype), u.astype(dtype), v.astype(dtype), size_hw, shifts, depth, 1, full)


def pictured(planes: Planes) -> Any:
    picture, out = blank(planes)
    chroma = planes.u.shape
    out.y[: planes.size_hw[0], : planes.size_hw[1]] = planes.y
    for before, after in ((planes.u, out.u), (planes.v, out.v)):
        after[: chroma[0], : chroma[1]] = before
    return picture


class Stored(StreamFrame):
    """A frame whose planes are given."""

    stored: Planes

    def planes(self) -> Planes:
        return self.stored


def composed(
    stored: Planes, composer: Composer, matte: npt.NDArray[np.uint8], *, colors: Colors, orientation: Orientation
) -> tuple[Any, dict[str, Any]]:
    """A frame with a new background as its receiver decodes it, and what its event says."""
    video = ComposedVideo(MatteComposition(composer, DEFINITION), BEST, fps=30)
    shown_hw = orientation.displayed_size(stored.size_hw)
    frame = Stored(0, 0, 0.0, 0, np.empty(0, np.uint8), shown_hw, orientation, colors, None)
    frame.stored = stored
    tensors, fields = video(frame, {MATTE: matte})
    (picture,) = pictures(tensors[VIDEO].tobytes())
    return picture, fields


def rgb(frame: Any) -> npt.NDArray[np.int64]:
    return to_rgb(planes_of(frame), ColorRule()).astype(np.int64)


@pytest.mark.parametrize(
    ("kind", "full", "size_hw"),
    [*((kind, full, (48, 64)) for kind in SHIFTS for full in (False, True)), ("4:2:0", False, (37, 51))],
)
def test_what_is_decoded_is_what_was_encoded(kind: str, full: bool, size_hw: tuple[int, int]) -> None:
    """But for the last row and column of a picture with odd sides."""
    planes = scene(size_hw, SHIFTS[kind], full=full)
    height, width = (side // 2 * 2 for side in size_hw)
    encoded = Encoder(BEST).encode(pictured(planes), at_s=0.0)
    assert (encoded.is_key, encoded.size_hw) == (True, (height, width))
    (frame,) = pictures(encoded.data)
    assert frame.format.name in ("yuv420p", "yuvj420p")
    # H.264 at crf 1 and chroma at half the size are within a few levels of a smooth picture.
    assert np.abs(rgb(frame) - to_rgb(planes, ColorRule())[:height, :width]).max() <= 6


def test_each_picture_gives_its_packet_at_once_and_keys_come_by_the_clock() -> None:
    encoder = Encoder(VideoOutput(keyframe_s=0.5), fps=10)
    packets = [encoder.encode(pictured(scene((48, 64))), at_s=number / 10) for number in range(20)]
    assert [number for number, packet in enumerate(packets) if packet.is_key] == [0, 5, 10, 15]
    assert len(pictures(*(packet.data for packet in packets))) == 20
    # Who joins at a key picture can decode from there.
    assert len(pictures(*(packet.data for packet in packets[5:]))) == 15


def test_times_that_are_missing_or_set_back_do_not_hold_keys_back() -> None:
    def keys(encoder: Encoder, *times: float | None) -> list[int]:
        made = [encoder.encode(pictured(scene((48, 64))), at_s=at_s) for at_s in times]
        return [number for number, packet in enumerate(made) if packet.is_key]

    assert keys(Encoder(VideoOutput(keyframe_s=1), fps=10), *[None] * 21) == [0, 10, 20]
    assert keys(Encoder(VideoOutput(keyframe_s=1)), 100, 100.1, 3, 3.1) == [0, 2]


def test_a_change_of_size_begins_anew_with_a_key_picture() -> None:
    encoder = Encoder(BEST)
    sizes = [(48, 64), (48, 64), (80, 32), (80, 32)]
    packets = [encoder.encode(pictured(scene(size)), at_s=number / 30) for number, size in enumerate(sizes)]
    assert [packet.is_key for packet in packets] == [True, False, True, False]
    assert [(frame.height, frame.width) for frame in pictures(*(packet.data for packet in packets))] == sizes


@pytest.mark.parametrize(
    "orientation", [Orientation(), Orientation(False, True, True), Orientation(True, False, True)], ids=str
)
@pytest.mark.parametrize("depth", [8, 10])
@pytest.mark.parametrize("kind", ["4:2:0", "4:2:2"])
def test_a_person_stays_and_the_rest_is_replaced_as_displayed(kind: str, depth: int, orientation: Orientation) -> None:
    """The matte says: the upper half of the displayed picture is a person."""
    stored = scene((48, 64), SHIFTS[kind], depth=depth)
    shown_hw = orientation.displayed_size(stored.size_hw)
    window = picture_window(DEFINITION, shown_hw)
    matte = np.zeros((32, 32), np.uint8)
    matte[window.top : window.top + window.height // 2] = 255
    blue = Composer(Color((0, 0, 255)))
    picture, fields = composed(stored, blue, matte, colors=AS_TAGGED, orientation=orientation)
    height, width = shown_hw
    assert fields == {"key": True, "width": width, "height": height}
    found = rgb(picture)
    # Around the border the matte is stretched over two of its rows, and coding smears by a block.
    upper, lower = found[: height // 2 - 8], found[height // 2 + 8 :]
    eight_bit = replace(stored, depth=8, **{n: (getattr(stored, n) >> depth - 8).astype(np.uint8) for n in "yuv"})
    expected = orientation.turn(to_rgb(eight_bit, ColorRule())).astype(int)
    assert np.abs(upper - expected[: height // 2 - 8]).max() <= 8
    assert np.abs(lower - (0, 0, 255)).max() <= 8


@pytest.mark.parametrize(
    "colors",
    [
        Colors("bt601", "limited", "assumed", "assumed"),
        Colors("bt709", "limited", "chosen", "assumed"),
        Colors("bt2020", "full", "file", "file"),
    ],
    ids=lambda colors: f"{colors.matrix}-{colors.range}",
)
def test_composed_video_is_tagged_with_the_colours_that_were_used(colors: Colors) -> None:
    """So a reader sees the colour that was asked for as the background, whatever it assumes of files without tags."""
    red = Composer(Color((200, 30, 30)), rule=ColorRule(matrix=colors.matrix, range=colors.range))
    untagged, nobody = replace(scene((48, 64)), matrix_tag=2, full_range=None), np.zeros((32, 32), np.uint8)
    picture, _ = composed(untagged, red, nobody, colors=colors, orientation=Orientation())
    assert planes_of(picture).matrix_tag == colors.matrix_tag
    assert planes_of(picture).full_range is colors.is_full_range
    assert np.abs(picture.to_ndarray(format="rgb24").astype(int) - (200, 30, 30)).max() <= 4
