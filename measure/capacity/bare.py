"""What the work itself costs: CPU time of decoding, of the network, and of encoding, with nothing around them.

All cores do the same at once, as they do when they serve: cores that are two threads of one are slower together.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from onestream.measure.capacity.clip import FPS
from onestream.serving.stream_options import VideoOutput
from onestream.wire.tensor_names import PIXELS

_FRAMES = 150
_BATCH = 4
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Bare:
    """Milliseconds of one core for each frame; ``encode_ms`` is 0 where nothing is encoded."""

    decode_ms: float
    network_ms: float
    encode_ms: float

    @classmethod
    def mean(cls, costs: Sequence[Bare]) -> Bare:
        """The mean of each; at least one is needed."""
        return cls(*(sum(values) / len(values) for values in zip(*map(astuple, costs), strict=True)))

    def streams(self, cores: int, *, stride: int) -> float:
        """How many streams of 30 frames/s the cores could decode and infer, if nothing else took time."""
        return self._streams(cores, self.decode_ms + self.network_ms / stride)

    def streams_encoded(self, cores: int, *, stride: int) -> float:
        """The same with encoding."""
        return self._streams(cores, self.decode_ms + (self.network_ms + self.encode_ms) / stride)

    def _streams(self, cores: int, frame_ms: float) -> float:
        return cores * 1000 / (FPS * frame_ms)


def measure(clip: Path, network: Path, output: VideoOutput | None) -> Bare:
    """Measure, in a process for each core. ``network`` is the served ONNX file."""
    cores = sorted(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(len(cores))
    with context.Pool(len(cores), initializer=_prepare, initargs=(together,)) as pool:
        tasks = [(clip, network, output, core) for core in cores]
        found = pool.starmap_async(_measure, tasks, chunksize=1).get(_TIMEOUT_S)
    return Bare.mean(found)


_together: Any = None


def _prepare(together: Any) -> None:
    global _together
    _together = together


def _measure(clip: Path, network: Path, output: VideoOutput | None, core: int) -> Bare:
    os.sched_setaffinity(0, {core})
    import av

    from onestream.serving.engine import OnnxRuntimeEngine

    frames: list[Any] = []

    def decode() -> None:
        frames.clear()
        with av.open(str(clip)) as container:
            container.streams.video[0].codec_context.thread_count = 1
            for frame in container.decode(video=0):
                frames.append(frame if len(frames) < 30 else None)
                if len(frames) == _FRAMES:
                    return

    engine = OnnxRuntimeEngine(network, threads=1)
    assert engine.definition is not None
    spec = engine.definition.output_spec
    height, width = spec.size_hw
    assert height is not None
    assert width is not None
    pixels = np.random.default_rng(0).integers(0, 256, (_BATCH, height, width, spec.channels), np.uint8)
    decode_ms = _usual(decode, lambda: len(frames))
    network_ms = _usual(lambda: [engine.run({PIXELS: pixels}) for _ in range(10)], lambda: 10 * _BATCH)
    encode_ms = 0.0
    if output is not None:
        pictures = [frame for frame in frames if frame is not None]
        encode_ms = _usual(lambda: _encode(pictures, output), lambda: len(pictures))
    return Bare(decode_ms, network_ms, encode_ms)


def _encode(pictures: list[Any], output: VideoOutput) -> None:
    import av

    encoder: Any = av.CodecContext.create("libx264", "w")
    encoder.width, encoder.height, encoder.pix_fmt = pictures[0].width, pictures[0].height, "yuv420p"
    encoder.framerate, encoder.time_base, encoder.thread_count = Fraction(FPS), Fraction(1, FPS), 1
    encoder.options = output.libx264_options
    for number, picture in enumerate(pictures):
        picture.pts, picture.time_base, picture.pict_type = number, Fraction(1, FPS), 0
        encoder.encode(picture)


def _usual(run: Callable[[], object], count: Callable[[], int]) -> float:
    """The middle of three. Begins when every core is ready to."""
    run()
    _together.wait(_TIMEOUT_S)
    found = []
    for _ in range(3):
        began = time.process_time()
        run()
        found.append(1000 * (time.process_time() - began) / count())
    return median(found)
