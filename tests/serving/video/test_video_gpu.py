"""Who decodes the streams of a server with a GPU, on which CUDA stream, and what happens where CUDA is gone."""

from __future__ import annotations

import gc
import importlib
import sys
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from clip_files import COUNT, write_video
from host_gpu import HostStream, view
from triton_stand_in import TRITON, imported_anew
from video_machine import RELOADED, Machine

from onestream.preprocess import CenterCrop, Decode, Definition, Limits, Normalize, Resize
from onestream.preprocess.errors import BackendMissing, CannotCompile
from onestream.preprocess.video.common.color import ColorRule
from onestream.preprocess.video.streams.sampling import Sampling
from onestream.preprocess.video.streams.stream import StreamFormat
from onestream.serving.stream_options import VideoOptions
from onestream.wire.video import Packet

DEFINITION = Definition(
    operations=(
        Decode(),
        Resize(mode="shorter", size=72),
        CenterCrop(size=(64, 64)),
        Normalize(mean=(0,) * 3, std=(1,) * 3),
    )
)
OPTIONS: dict[str, Any] = {"sampling": Sampling(), "color": ColorRule(), "limits": Limits(), "pictures": False}


def streams() -> Any:
    # The package may still name the module of another test.
    gpu = importlib.import_module("onestream.serving.video.gpu")
    return gpu.GpuStreams(DEFINITION, log=lambda _line: None)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[StreamFormat, list[Packet]]:
    """Packets of H.264, as Annex B."""
    import av

    path = write_video(tmp_path_factory.mktemp("clip") / "v.h264", "libx264", options={"g": "12"})
    with av.open(str(path)) as container:
        packets = [
            Packet(bytes(one), n, n, 1, one.is_keyframe) for n, one in enumerate(container.demux(video=0)) if one.size
        ]
    return StreamFormat(codec="h264", time_base=Fraction(1, 25)), packets


def test_a_video_takes_over_the_stream_of_one_that_ended(machine: Machine, clip: Any) -> None:
    gpu = streams()
    format, packets = clip
    for _ in range(3):
        pair = [gpu.decoder(format, **OPTIONS) for _ in range(2)]
        for decoder in pair:
            frames = [frame for packet in packets for frame in decoder.feed(packet)]
            assert 0 < len(frames) < COUNT
        del decoder, pair
        gc.collect()
    assert machine.streams == 2
    with pytest.raises(Exception, match="time base"):
        gpu.decoder(StreamFormat(codec="h264", time_base=Fraction(0)), **OPTIONS)
    gpu.decoder(format, **OPTIONS)
    assert machine.streams == 2


def test_pixels_reach_triton_where_they_are_and_with_those_of_the_other_side(machine: Machine, clip: Any) -> None:
    gpu = streams()
    decoder = gpu.decoder(clip[0], **OPTIONS)
    there = [frame.pixels for packet in clip[1] for frame in decoder.feed(packet)][:3]
    tensor = gpu.tensor(there[0])
    assert (tensor.name, tensor.values.shape) == ("pixels", (1, 64, 64, 3))
    assert tensor.values.ctypes.data == there[0].pointer
    assert machine.syncs >= 1
    here = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3).transpose(1, 0, 2)
    before = machine.streams
    for _ in range(2):
        found = gpu.tensor(gpu.gather([there[0], here, there[1], there[2]])).values
        assert found.shape == (4, 64, 64, 3)
        for row, one in enumerate((view(there[0])[0], here, view(there[1])[0], view(there[2])[0])):
            assert np.array_equal(found[row], one)
    # The thread keeps its own.
    assert machine.streams == before + 1
    assert gpu.gather(there[:1]) is there[0]


def test_a_process_whose_gpu_is_gone_ends(machine: Machine, clip: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA context does not recover; the supervisor starts the process again."""
    gpu = importlib.import_module("onestream.serving.video.gpu")

    class Ended(Exception):
        pass

    def end(code: int) -> None:
        raise Ended(code)

    def lost(*_arguments: Any) -> None:
        raise RuntimeError("CUDA_ERROR")

    decoder = streams().decoder(clip[0], **OPTIONS)
    monkeypatch.setattr(gpu.os, "_exit", end)
    monkeypatch.setattr(HostStream, "launch", lost)
    with pytest.raises(RuntimeError, match="CUDA_ERROR"):
        [decoder.feed(packet) for packet in clip[1]]
    decoder = streams().decoder(clip[0], **OPTIONS)
    monkeypatch.setattr(machine.core, "sync", lost)
    with pytest.raises(Ended):
        [decoder.feed(packet) for packet in clip[1]]
    # FFmpeg would go on with one video, and every other would fail.
    decoder = streams().decoder(clip[0], **OPTIONS)
    nvdec: Any = sys.modules["PyNvVideoCodec"]
    nvdec.fails_at = nvdec.packets + 1
    with pytest.raises(Ended):
        decoder.feed(clip[1][0])


def opened(decode: str, *, kind: str = "gpu", definition: Definition = DEFINITION) -> tuple[Any, list[str]]:
    """What a model of this kind of instance decodes with, and what it said."""
    from onestream.serving.video.model import Video

    model = Video.__new__(Video)
    model.name, model.device, model.gpu_index, model.model = "v", kind, 0, SimpleNamespace(definition=definition)
    model._options = VideoOptions(decode=decode)  # type: ignore[arg-type]
    return model._open_gpu(), sys.modules[TRITON].said


@pytest.mark.usefixtures("machine")
def test_the_option_and_the_machine_choose() -> None:
    assert opened("auto")[0] is not None
    assert opened("gpu")[0] is not None
    assert opened("cpu") == (None, [])
    assert opened("gpu", kind="cpu") == (None, [])
    sharp = Definition(operations=(Decode(), Resize(mode="shorter", size=72, filter="lanczos")))
    assert opened("gpu", definition=sharp)[0] is not None
    twice = Definition(operations=(Decode(), CenterCrop(size=(80, 80)), Resize(mode="exact", size=(72, 72))))
    found, said = opened("auto", definition=twice)
    assert found is None
    assert "all video is decoded on the CPU: video on a GPU does one resize, before any crop or pad" in said.pop()
    with pytest.raises(CannotCompile, match="one resize"):
        opened("gpu", definition=twice)
    with imported_anew(*RELOADED, PyNvVideoCodec=None):
        found, said = opened("auto")
        assert found is None
        assert "decoding video on a GPU needs PyNvVideoCodec" in said.pop()
        with pytest.raises(BackendMissing, match=r"\.\[gpu\]"):
            opened("gpu")
