"""The host's part of a GPU batch, on any machine: headers, plans, tables and launches, on a stream that does nothing.

``python benchmarks/gpu/host_part.py`` prints images per second of CPU time; ``--against FOLDER`` runs
another checkout's code in turns with this one's and prints ratios. What the libraries take is not in it: nvImageCodec,
CUDA's calls (a dozen a batch), TensorRT. Three rates:

*headers*  encoded JPEGs to ``Checked``, which the server does once a request
*known*    a batch of ``Checked`` through ``OneStream``, of four sizes that were seen before
*new*      the same, each picture of a size that was never seen

They count CPU time, so that other programs disturb them little.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

BATCH = 64
PARTS = ("headers", "known", "new")
_SIZES = ((375, 500), (500, 375), (480, 640), (1080, 1920))
_ROOT = Path(__file__).parents[2]
_FRAME = b"\xff\xc0\x00\x11\x08"


def main() -> None:
    """Measure this checkout, or two in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=40, help="of one measurement")
    parser.add_argument("--once", action="store_true", help="print one measurement of the imported code as JSON")
    options = parser.parse_args()
    if options.once:
        print(json.dumps(measure(options.batches)))
        return
    folders = [_ROOT] if options.against is None else [_ROOT, options.against.resolve()]
    rounds = [[_measured(folder, options.batches) for folder in folders] for _ in range(options.rounds)]
    for part in PARTS:
        rates = [np.median([one[at][part] for one in rounds]) for at in range(len(folders))]
        text = " against ".join(f"{rate:,.0f}" for rate in rates)
        if len(folders) == 2:
            low, middle, high = np.percentile([ours[part] / theirs[part] for ours, theirs in rounds], (25, 50, 75))
            text += f", {middle:.2f} times as many ({low:.2f} to {high:.2f})"
        print(f"{part:8} {text} images/s")


def _measured(folder: Path, batches: int) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, __file__, "--once", "--batches", str(batches)],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return cast("dict[str, float]", json.loads(done.stdout))


def measure(batches: int) -> dict[str, float]:
    """Images per second of CPU time, by part."""
    from onestream.preprocess.backends import nvimgcodec

    cast("Any", nvimgcodec).nvimgcodec = _Nvimgcodec()
    from onestream.serving.models.one_stream import OneStream
    from onestream.serving.pipeline import GpuOptions, Pipeline

    pipeline = Pipeline.from_file(_ROOT / "pipelines" / "classify.yaml")
    limits, definition = pipeline.limits, pipeline.preprocess
    device = _Device()
    engine = cast("Any", SimpleNamespace(max_batch_size=BATCH, open=_Session))
    stream = OneStream(definition, limits, engine, device=cast("Any", device), options=GpuOptions())
    draw = random.Random(0)
    files = [_jpeg(*draw.choice(_SIZES)) for _ in range(BATCH)]
    known = [[limits.checked(file) for file in files]]
    sizes = draw.sample([(height, width) for height in range(300, 700) for width in range(300, 700)], BATCH * batches)
    new = [
        [limits.checked(_jpeg(*size)) for size in sizes[first : first + BATCH]] for first in range(0, len(sizes), BATCH)
    ]

    def run(batch: Sequence[Any]) -> None:
        result = stream.run(batch)
        assert len(result.good) == BATCH, result.bad

    for _ in range(5):
        run(known[0])
    return {
        "headers": _rate(lambda batch: list(map(limits.checked, batch)), [files] * batches),
        "known": _rate(run, known * batches),
        "new": _rate(run, new),
    }


def _rate(run: Callable[[Any], object], batches: Sequence[Any]) -> float:
    began = time.process_time()
    for batch in batches:
        run(batch)
    return BATCH * len(batches) / (time.process_time() - began)


def _jpeg(height: int, width: int, made: dict[str, bytes] = {}) -> bytes:  # noqa: B006 (what is made once)
    """A JPEG of which only the header, with this size, is read."""
    if not made:
        file = io.BytesIO()
        from PIL import Image

        noise = np.random.default_rng(0).integers(0, 255, (375, 500, 3), np.uint8)
        Image.fromarray(noise).save(file, "JPEG", quality=50)
        made["file"] = file.getvalue()
    before, frame, after = made["file"].partition(_FRAME)
    return before + frame + height.to_bytes(2, "big") + width.to_bytes(2, "big") + after[4:]


class _Nvimgcodec(SimpleNamespace):
    """The library, of which a decoder gives images of the right size at once."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_arguments, **_options: None

    class BackendKind:
        HYBRID_CPU_GPU = CPU_ONLY = HW_GPU_ONLY = GPU_ONLY = 0

    class ColorSpec:
        SRGB = 0

    class SampleFormat:
        I_RGB = 0

    class CodeStream:
        def __init__(self, file: Any) -> None:
            at = bytes(file[:1024]).index(_FRAME) + len(_FRAME)
            self.size = int.from_bytes(file[at : at + 2], "big"), int.from_bytes(file[at + 2 : at + 4], "big")

    class Decoder:
        def __init__(self, **_options: Any) -> None:
            pass

        def decode(self, streams: Sequence[Any], **_options: Any) -> list[Any]:
            return [_Image(one.size) for one in streams]


class _Image:
    """Pixels that are not read."""

    capacity = 1 << 20

    def __init__(self, size: tuple[int, int]) -> None:
        self.shape = (*size, 3)
        self.__cuda_array_interface__ = {
            "shape": self.shape,
            "typestr": "|u1",
            "data": (1 << 40, False),
            "strides": None,
        }


class _Device:
    """A GPU without memory and without work."""

    index = syncs = 0
    compute_capability = (9, 0)

    def enter(self) -> None:
        pass

    def kernel(self, *_source: str) -> None:
        pass

    def stream(self) -> _Stream:
        return _Stream(self)


class _Stream:
    """A stream that everything has passed at once."""

    handle = 1

    def __init__(self, device: _Device) -> None:
        self.device = device

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Any:
        from onestream.preprocess.cuda.device import DeviceArray

        return DeviceArray(1 << 40, tuple(shape), np.dtype(dtype), self.handle, None)

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return np.zeros(shape, dtype)

    def event(self) -> Any:
        return SimpleNamespace(done=True, milliseconds_since=lambda _earlier: 0.0)

    def _nothing(self, *_arguments: Any) -> None:
        pass

    sync = record = follow = fill = launch = upload = download = copy = _nothing


class _Session:
    """A network with one output of a thousand numbers."""

    def __init__(self, stream: _Stream) -> None:
        self.inputs = {"pixels": stream.allocate((BATCH, 224, 224, 3), np.uint8)}
        self.outputs = {"scores": stream.allocate((BATCH, 5), np.float32)}

    def enqueue(self, batch: int) -> None:
        pass


if __name__ == "__main__":
    main()
