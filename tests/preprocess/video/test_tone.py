"""HDR: mapped to SDR where the rule says so, and said where it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from definitions import AS_IT_IS, in_levels
from hdr_files import as_hdr
from sample_images import photo
from stream_files import CLASSIFY, decoded, stream_of

from onestream.preprocess.moves import Letterbox
from onestream.preprocess.video.clips.choose_frames import Clip
from onestream.preprocess.video.clips.decode import VideoFile
from onestream.preprocess.video.clips.maker import ClipMaker
from onestream.preprocess.video.common.color import ColorRule
from onestream.preprocess.video.common.tone import Hdr, tone_mapped, tone_mapped_reference
from onestream.preprocess.video.streams.stream import StreamDecoder


@pytest.mark.parametrize("transfer", ["pq", "hlg"])
def test_hdr_is_mapped_to_the_sdr_that_it_was_made_of(transfer: Hdr) -> None:
    picture = np.asarray(photo("coffee").resize((90, 60)))
    hdr = as_hdr(picture, transfer)
    found = tone_mapped_reference(hdr, transfer)
    kept = (picture.max(axis=2) < 225) & (picture.min(axis=2) > 30)
    assert np.abs(found.astype(int) - picture)[kept].max() <= 6
    assert np.abs(found.astype(int) - picture).mean() < 2.5
    assert np.abs(hdr.astype(int) - picture).mean() > 15
    np.testing.assert_array_equal(tone_mapped(hdr, transfer), found)
    # What is brighter than white keeps its order, and nothing is cut but what is out of BT.709.
    ramp = np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, axis=2)
    mapped = tone_mapped(ramp, transfer)[0, :, 0].astype(int)
    assert (mapped[0], mapped[-1]) == (0, 255)
    assert (np.diff(mapped) >= 0).all()
    every = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    np.testing.assert_array_equal(tone_mapped(every, transfer), tone_mapped_reference(every, transfer))


@pytest.mark.parametrize("definition", [CLASSIFY, AS_IT_IS, in_levels(Letterbox(size=(80, 80)), color="gray")])
def test_streams_and_clips_map_alike(hdr_video: Path, definition: Any) -> None:
    rule = ColorRule(transfer="sdr")
    format, packets = stream_of(hdr_video)
    decoder = StreamDecoder(definition, format, color=rule, pictures=True)
    frames = decoded(decoder, packets)
    expected = ClipMaker(definition.pixels(), Clip(), color=rule).make(hdr_video)
    assert all(np.array_equal(frame.pixels, pixels) for frame, pixels in zip(frames, expected, strict=True))
    literal = ClipMaker(definition.pixels(), Clip(), color=rule, backend="reference").make(hdr_video)
    assert np.abs(expected.astype(int) - literal).max() <= 1
    unmapped = ClipMaker(definition.pixels(), Clip()).make(hdr_video)
    assert expected.mean() > unmapped.mean() + 5
    if definition is AS_IT_IS:
        np.testing.assert_array_equal(frames[3].picture(), frames[3].pixels)
    assert str(decoder.colors).endswith("limited (file), pq (mapped)")


def test_hdr_that_is_taken_as_sdr_is_said(hdr_video: Path, said: list[str]) -> None:
    with VideoFile(hdr_video) as video:
        colors = [video.colors() for _ in range(2)]
        assert video.colors(ColorRule(transfer="sdr")).to_dict()["transfer_as"] == "mapped"
    assert said == [
        "a video is HDR (pq), and its values are taken as if they were SDR's (color.transfer: ignore) (said once)"
    ]
    assert str(colors[0]) == "bt2020 (file), limited (file), pq (as SDR)"
    assert colors[1].to_dict() == {
        "matrix": "bt2020",
        "range": "limited",
        "matrix_from": "file",
        "range_from": "file",
        "transfer": "pq",
        "transfer_as": "sdr",
    }
