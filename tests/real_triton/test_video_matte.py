"""Composed video through a real Triton: pictures, order, times, drops that leave it playable, the command."""

from __future__ import annotations

import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from clip_files import add_sound, every_frame, sound_of, turn, write_video
from pages import blocks, printed_by
from PIL import Image
from shared_server import MATTE, SharedServer
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.client import Client
from onestream.client.video import VideoWriter
from onestream.postprocess.kinds.matte import Matte
from onestream.postprocess.matte.composer import Composer, alpha, picture_window
from onestream.postprocess.planes import displayed
from onestream.preprocess.video.common.color import ColorRule, Planes, planes_of, to_rgb
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.streams.stream import StreamDecoder, StreamFormat
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.pipeline import BACKGROUND_FILE, Pipeline
from onestream.wire.video import Packet

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow, pytest.mark.serves(MATTE)]

ROOT = Path(__file__).parents[2]
FRAMES = 20
SIZE_HW = (270, 480)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A person before a background, with B-frames."""
    photo = Image.open(ROOT / "examples" / "photos" / "astronaut.jpg").convert("RGB").resize((520, 520))
    corners = [(number, number // 2) for number in range(FRAMES)]
    shown = [np.asarray(photo.crop((left, top, left + SIZE_HW[1], top + SIZE_HW[0]))) for left, top in corners]
    path = tmp_path_factory.mktemp("video") / "clip.mp4"
    return write_video(path, "libx264", options={"bf": "2"}, time_base=Fraction(1, 30), pictures=shown)


def expected(server: SharedServer, clip: Path, orientation: Orientation) -> list[npt.NDArray[np.uint8]]:
    """The composed pictures as RGB, from the reference composition in process."""
    pipeline = Pipeline.from_file(server.pipeline_file("matte"))
    options = pipeline.postprocess
    assert isinstance(options, Matte)
    engine = OnnxRuntimeEngine(server.repository / "matte_fused" / "1" / "model.onnx", threads=1)
    composer = Composer(options.behind((server.pipeline_file("matte").parent / BACKGROUND_FILE).read_bytes))
    with av.open(str(clip)) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        decoder = StreamDecoder(
            pipeline.preprocess,
            StreamFormat(
                codec="h264",
                time_base=Fraction(stream.time_base or 0),
                extradata=bytes(context.extradata or b""),
                orientation=orientation,
            ),
            pictures=True,
        )
        packets = [Packet(bytes(p), p.pts, p.dts, p.duration or 0, p.is_keyframe) for p in container.demux(stream)]
    frames = [frame for packet in [*(p for p in packets if p.data), None] for frame in decoder.feed(packet)]
    pictures = []
    for frame in frames:
        matte = alpha(engine.run({"pixels": frame.pixels[None]})["person"], softness=options.softness)[0]
        window = picture_window(pipeline.preprocess, frame.size_hw)
        part = matte[window.top : window.top + window.height, window.left : window.left + window.width]
        composed: Planes = composer.compose_reference(displayed(frame.planes(), orientation), part)
        pictures.append(to_rgb(composed, ColorRule()))
    return pictures


def psnr_db(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> float:
    error = float(np.mean((one.astype(np.float64) - other) ** 2))
    return 10 * np.log10(255**2 / max(error, 1e-9))


def stream(server: SharedServer, source: Path, out: Path) -> None:
    """By the command."""
    arguments = ["stream", "--url", server.grpc_address, "--pipeline", "matte", str(source), "-o", str(out)]
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 0, ended.output


@pytest.mark.parametrize("turned", [False, True], ids=["upright", "turned"])
def test_every_picture_is_the_reference_s_in_order_and_at_its_time(
    grpc_client: Client, server: SharedServer, clip: Path, tmp_path: Path, turned: bool
) -> None:
    source = turn(tmp_path / "turned.mp4", clip, (0, 1, -1, 0)) if turned else clip
    orientation = Orientation(True, False, True) if turned else Orientation()
    with grpc_client.stream(source, pipeline="matte") as stream, VideoWriter(tmp_path / "out.mp4") as video:
        results = []
        for result in stream:
            results.append(result)
            video.write(result)
        assert stream.ended_reason == "done"
    assert [one.frame_index for one in results] == list(range(FRAMES))
    shown_hw = orientation.displayed_size(SIZE_HW)
    assert {(one.video.height, one.video.width) for one in results if one.video} == {shown_hw}
    frames = every_frame(tmp_path / "out.mp4")
    assert [frame.time for frame in frames] == pytest.approx(np.arange(FRAMES) / 30, abs=1e-4)
    found = [to_rgb(planes_of(frame), ColorRule()) for frame in frames]
    wanted = expected(server, source, orientation)
    for number in range(FRAMES):
        # crf 8 is above 40 dB; a frame's neighbour, which is a pixel away, must be further.
        assert psnr_db(found[number], wanted[number]) > 38
        assert psnr_db(found[number], wanted[number]) > psnr_db(found[number], wanted[number - 1])


@pytest.mark.parametrize(
    ("pixel_format", "tags", "out"),
    [
        ("yuv420p", (1, 1, 1, 1), "out.mp4"),
        ("yuv420p", (5, 6, 6, 2), "out.mkv"),
        # BT.2020 with PQ: samples are cut to 8 bit, and stay in that matrix and transfer.
        ("yuv420p10le", (9, 16, 9, 1), "out.mp4"),
    ],
    ids=["bt709", "bt601-full", "hdr10"],
)
def test_sound_shape_and_colours_are_the_source_s(
    server: SharedServer, tmp_path: Path, pixel_format: str, tags: tuple[int, int, int, int], out: str
) -> None:
    def change(stream: Any) -> None:
        context = stream.codec_context
        context.color_primaries, context.color_trc, context.colorspace, context.color_range = tags
        context.sample_aspect_ratio = Fraction(4, 3)

    silent = write_video(
        tmp_path / "silent.mp4", "libx264", options={"bf": "2"}, pixel_format=pixel_format, change=change
    )
    source = add_sound(tmp_path / "source.mp4", silent, ["aac"])
    turned = turn(tmp_path / "turned.mp4", source, (0, 1, -1, 0))
    for path, aspect, size in ((source, Fraction(4, 3), (128, 96)), (turned, Fraction(3, 4), (96, 128))):
        stream(server, path, tmp_path / out)
        with av.open(str(tmp_path / out)) as container:
            video = container.streams.video[0]
            frame: Any = next(container.decode(video))
            context = video.codec_context
            assert video.sample_aspect_ratio == aspect
            assert (frame.width, frame.height, frame.rotation) == (*size, 0)
            found = (context.color_primaries, context.color_trc, int(frame.colorspace), int(frame.color_range))
            assert found == tags
        copied, sound = sound_of(tmp_path / out), sound_of(path)
        assert [data for data, _ in copied] == [data for data, _ in sound]
        # Matroska counts in milliseconds.
        np.testing.assert_allclose([at for _, at in copied], [at for _, at in sound], atol=1.1e-3)


def test_what_a_live_stream_drops_leaves_the_rest_playable(grpc_client: Client, clip: Path, tmp_path: Path) -> None:
    def some_were_dropped() -> bool:
        with (
            grpc_client.stream(clip, pipeline="matte", mode="drop_oldest", results=2) as frames,
            VideoWriter(tmp_path / "out.mp4") as video,
        ):
            count = 0
            for result in frames:
                video.write(result)
                count += 1
                time.sleep(0.03)
        assert count + frames.dropped == FRAMES
        written = every_frame(tmp_path / "out.mp4")
        assert len(written) == count
        assert not any(frame.is_corrupt for frame in written)
        return frames.dropped > 0

    # On a busy machine the server may be slower than this caller.
    assert any(some_were_dropped() for _ in range(10))


def test_the_page_s_python_writes_it(server: SharedServer, clip: Path, tmp_path: Path) -> None:
    _classifying, code, _tracking = blocks("video.md", "python")
    code = code.replace("127.0.0.1:8001", server.grpc_address)
    printed_by(code.replace("clip.mp4", str(clip)).replace("out.mp4", str(tmp_path / "out.mp4")))
    assert len(every_frame(tmp_path / "out.mp4")) == FRAMES
