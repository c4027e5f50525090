"""Composed video on a GPU made of host memory, through the model's own sessions: equal to the CPU's, packet by packet.

Decoding, sessions, threads and the encoder are the real ones; NVDEC is FFmpeg, and the kernels run on the CPU.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clip_files import COUNT, turn, write_video
from host_gpu import HostDevice
from host_nvdec import Codec
from model_in_process import a_model, begin, composed, pictures
from patience import wait_until
from PIL import Image
from triton_stand_in import TRITON, Array, triton
from video_machine import Machine

from onestream.postprocess.matte.background import Color
from onestream.postprocess.matte.composer import Composer
from onestream.postprocess.matte.kernels_gpu import KERNELS
from onestream.preprocess.errors import CannotCompile
from onestream.preprocess.video.common.color import ColorRule, planes_of
from onestream.serving.pipeline import BACKGROUND_FILE, Pipeline

ROOT = Path(__file__).parents[3]
BACKGROUNDS: dict[str, dict[str, Any]] = {
    "blur": {"kind": "blur", "radius": 20},
    "color": {"kind": "color", "rgb": [0, 177, 64]},
    "picture": {"kind": "picture", "path": "temple.jpg"},
}


def red(pixels: Array) -> Array:
    """A network that finds a person in what is red: every frame's matte is its own."""
    return pixels[..., 0].astype(np.float32) / 255


def oval(pixels: Array) -> Array:
    """A network that finds a person in the middle, whatever it is shown."""
    rows, columns = np.mgrid[-1 : 1 : pixels.shape[1] * 1j, -1 : 1 : pixels.shape[2] * 1j]
    person = np.clip(1.5 - 2 * np.hypot(rows, columns), 0, 1).astype(np.float32)
    return np.broadcast_to(person, pixels.shape[:3])


Opened = Callable[..., Any]


@pytest.fixture
def opened(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Opened]:  # noqa: ARG001
    """Loads the model of a matte pipeline: (kind of instance, background, network)."""
    models = []

    def open_model(kind: str, background: str = "color", network: Any = oval, **video: Any) -> Any:
        if not models:
            monkeypatch.setitem(sys.modules, TRITON, triton(network))
            # It would end this process.
            monkeypatch.setattr(importlib.import_module("onestream.serving.models.deadline"), "extend", lambda: None)
        (tmp_path / "temple.jpg").write_bytes((ROOT / "examples" / "photos" / "temple.jpg").read_bytes())
        pipeline = Pipeline.from_file(ROOT / "pipelines" / "matte.yaml")
        fields = pipeline.model_dump(mode="json")
        fields["postprocess"]["background"] = BACKGROUNDS[background]
        fields["video"] |= {"output": {"crf": 1}, **video}
        folder = tmp_path / f"{kind}-{len(models)}"
        folder.mkdir()
        Image.open(tmp_path / "temple.jpg").save(folder / BACKGROUND_FILE, "PNG")
        models.append(a_model(folder, Pipeline.model_validate(fields), kind=kind))
        return models[-1]

    yield open_model
    for model in models:
        model.finalize()


def bt709_full_wide(stream: Any) -> None:
    context = stream.codec_context
    context.color_primaries, context.color_trc, context.colorspace, context.color_range = 1, 1, 1, 2
    context.sample_aspect_ratio = Fraction(4, 3)


def bt601(stream: Any) -> None:
    context = stream.codec_context
    context.color_primaries, context.color_trc, context.colorspace, context.color_range = 5, 6, 6, 1


QUIET_HEVC = {"x265-params": "log-level=none:keyint=20"}
CLIPS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "h264": (".mp4", "libx264", {"size_hw": (144, 256), "options": {"bf": "3", "g": "12"}}),
    "nothing waits": (".mp4", "libx264", {"options": {"bf": "0", "tune": "zerolatency"}}),
    "bt709 full, 4:3": (".mp4", "libx264", {"size_hw": (144, 256), "change": bt709_full_wide}),
    "bt601": (".mp4", "libx264", {"size_hw": (146, 200), "change": bt601}),
    "odd sides, 4:4:4": (".mkv", "libvpx-vp9", {"size_hw": (95, 129), "pixel_format": "yuv444p"}),
    "10 bit, 4:4:4": (".mkv", "libx265", {"pixel_format": "yuv444p10le", "options": QUIET_HEVC}),
}


def a_clip(folder: Path, kind: str = "h264") -> Path:
    suffix, codec, options = CLIPS[kind]
    return write_video(folder / f"clip{suffix}", codec, **options)


Composed = list[tuple[Any, bytes]]


@pytest.fixture
def on_both(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Composed]:
    """A clip as it is composed on a GPU, where nothing is composed on the CPU; it is the same on a CPU."""

    def compose(path: Path, background: str = "picture", network: Any = oval) -> Composed:
        expected = composed(opened("CPU", background, network), path)
        model = opened("GPU", background, network)
        monkeypatch.setattr(Composer, "compose", None)
        found = composed(model, path)
        assert [said for said, _ in found] == [said for said, _ in expected]
        for number, ((_, data), (_, other)) in enumerate(zip(found, expected, strict=True)):
            assert data == other, f"frame {number}"
        return found

    return compose


@pytest.mark.parametrize(
    ("clip", "background", "network"),
    [
        pytest.param("h264", "blur", red, marks=pytest.mark.slow),
        ("bt709 full, 4:3", "color", red),
        ("bt601", "picture", oval),
        ("odd sides, 4:4:4", "picture", oval),
        pytest.param("10 bit, 4:4:4", "blur", oval, marks=pytest.mark.slow),
        ("turned by a quarter", "picture", oval),
        pytest.param("mirrored", "picture", oval, marks=pytest.mark.slow),
    ],
)
def test_a_composed_clip_is_that_of_the_cpu(
    clip: str, background: str, network: Any, machine: Machine, on_both: Callable[..., Composed], tmp_path: Path
) -> None:
    matrix = {"turned by a quarter": (0, 1, -1, 0), "mirrored": (-1, 0, 0, 1)}.get(clip)
    path = turn(tmp_path / "turned.mp4", a_clip(tmp_path), matrix) if matrix else a_clip(tmp_path, clip)
    found = on_both(path, background, network)
    assert [said["index"] for said, _ in found] == list(range(COUNT))
    # Each composed frame was copied to the host once, and the first surface, to be compared with FFmpeg's picture.
    assert len(machine.downloads) == 1 + COUNT
    shown = pictures(*(data for _, data in found))
    assert len(shown) == COUNT
    tags = {"bt709 full, 4:3": (1, True), "bt601": (6, False)}.get(clip)
    if tags is not None:
        planes = planes_of(shown[0])
        assert (planes.matrix_tag, planes.full_range) == tags
    if matrix:
        assert found[0][0]["height"] == (256 if matrix[0] == 0 else 144)


def test_a_change_of_size_is_followed(on_both: Callable[..., Composed], tmp_path: Path) -> None:
    parts = [
        write_video(tmp_path / f"{n}.h264", "libx264", count=6, size_hw=size_hw, options={"bf": "2"}).read_bytes()
        for n, size_hw in enumerate([(96, 128), (160, 144), (96, 128)])
    ]
    path = tmp_path / "all.h264"
    path.write_bytes(b"".join(parts))
    found = on_both(path)
    assert [said["height"] for said, _ in found] == [96] * 6 + [160] * 6 + [96] * 6


def test_streams_at_once_do_not_mix(opened: Opened, tmp_path: Path) -> None:
    path, model = a_clip(tmp_path), opened("GPU", "color", red)
    expected = composed(model, path)
    streams = [begin(model, path, number=number) for number in (1, 2)]
    for stream in streams:
        stream.wait_for(lambda stream=stream: stream.ended)
        assert [data for _, data in stream.frames] == [data for _, data in expected]


def test_what_the_cpu_decodes_is_composed_there(machine: Machine, opened: Opened, tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mkv", "libvpx", size_hw=(96, 128))
    machine.nvdec.lacks = {Codec.VP9}
    assert composed(opened("GPU"), path) == composed(opened("CPU"), path)
    assert (machine.allocated, machine.downloads) == (0, [])


def test_a_stream_that_the_cpu_takes_over_stays_playable(machine: Machine, opened: Opened, tmp_path: Path) -> None:
    """NVDEC fails within it: FFmpeg decodes from the next keyframe on, and these frames are composed on the CPU."""
    path = a_clip(tmp_path)
    model = opened("GPU")
    machine.nvdec.fails_at = 15
    found = composed(model, path)
    there = len(machine.downloads) - 1
    assert 0 < there < len(found) < COUNT
    shown = pictures(*(data for _, data in found))
    assert len(shown) == len(found)
    assert not any(frame.is_corrupt for frame in shown)


ENDS = {
    "a message that cannot be read": "bad_message",
    "the client is gone": None,
    "the network fails": "failed: the network failed: no network",
    "the copy back fails": "failed: frame 16 cannot be finished: no more memory",
}


@pytest.mark.slow
@pytest.mark.parametrize("end", list(ENDS))
def test_a_stream_that_ends_early_frees_its_memory(end: str, machine: Machine, opened: Opened, tmp_path: Path) -> None:
    """And the streams of others, before and after, are whole."""
    broken = False

    def network(pixels: Array) -> Array:
        if broken and end == "the network fails":
            raise RuntimeError("no network")
        return oval(pixels)

    path = a_clip(tmp_path, "nothing waits")
    model = opened("GPU", "blur", network)
    whole = [data for _, data in composed(model, path)]
    wait_until(machine.freed, "the memory of a stream that is done")
    stream = begin(model, path, packets=16)
    stream.wait_for(lambda: len(stream.frames) == 16)
    assert machine.allocated > 0
    broken = True
    if end == "a message that cannot be read":
        stream.say(b"\x01\0\0\0[")
    elif end == "the client is gone":
        stream.gone = True
    else:
        machine.copies_fail = end == "the copy back fails"
        stream.say(stream.rest)
    wait_until(machine.freed, "the memory of a stream that ended")
    ended = None if stream.ended is None else f"{stream.ended['code']}: {stream.ended['reason']}"
    assert str(ended).startswith(str(ENDS[end]))
    assert len(stream.frames) == 16
    broken = machine.copies_fail = False
    assert [data for _, data in composed(model, path, number=2)] == whole


def test_a_composer_takes_over_the_cuda_stream_of_one_that_ended(machine: Machine, opened: Opened) -> None:
    model, background = opened("GPU"), Color((1, 2, 3))
    for _ in range(3):
        pair = [model._gpu.composer(background, rule=ColorRule()) for _ in range(2)]
        assert machine.streams == 2
        del pair


def test_a_process_whose_gpu_is_gone_ends(
    machine: Machine, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CUDA context does not recover; the supervisor starts the process again."""
    model = opened("GPU")
    codes: list[int] = []
    gpu = importlib.import_module("onestream.serving.video.gpu")
    monkeypatch.setattr(gpu, "os", types.SimpleNamespace(_exit=codes.append))
    stream = begin(model, a_clip(tmp_path, "nothing waits"), packets=16)
    stream.wait_for(lambda: len(stream.frames) == 16)
    machine.copies_fail = True
    monkeypatch.setattr(machine.core, "sync", lambda: (_ for _ in ()).throw(RuntimeError("the context is gone")))
    stream.say(stream.rest)
    wait_until(lambda: codes, "the end of the process")
    assert set(codes) == {1}


def test_without_a_compiler_for_the_kernels_the_cpu_decodes_and_composes(
    machine: Machine, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kernel(source: str, name: str) -> Any:
        if source is KERNELS:
            raise CannotCompile(f"the kernel {name} cannot be compiled: no NVRTC")
        return HostDevice.kernel(machine, source, name)

    monkeypatch.setattr(machine, "kernel", kernel, raising=False)
    path = write_video(tmp_path / "clip.mp4", "libx264", count=5)
    assert len(composed(opened("GPU"), path)) == 5
    said = sys.modules[TRITON].said
    assert any("all video is decoded on the CPU: the kernel matte_compose cannot" in line for line in said)
    assert machine.downloads == []
    with pytest.raises(CannotCompile, match="no NVRTC"):
        opened("GPU", decode="gpu")
