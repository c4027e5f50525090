"""``python -m benchmarks.gpu.codec``: nvImageCodec alone, by setting, CPU threads and streams, each kept at once.

A setting that may crash or hang, JPEG hardware before all, gets a process of its own.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks.gpu.measure import Batch, Lanes, Photos
from benchmarks.gpu.points import Points, no_gpu, parser, photos_of
from benchmarks.photos import SEED
from onestream.preprocess.cuda.device import Device, Stream, open_device
from onestream.preprocess.errors import PreprocessError

_NEVER = 2**31 - 1
SETTINGS = {
    "entropy on the GPU": (0.0, 0),
    "entropy on the GPU above 0.25 MP": (0.0, 250_000),
    "entropy on the GPU above 1 MP": (0.0, 1_000_000),
    "entropy on the CPU": (0.0, _NEVER),
    "hardware 0.5": (0.5, 0),
    "hardware 0.9": (0.9, 0),
    "hardware 1": (1.0, 0),
}
"""Share of the JPEG hardware, and pixels above which the entropy is decoded on the GPU."""


class Decoding:
    """A decoder on a stream, as ``backends.nvimgcodec`` makes it; its images are used again."""

    def __init__(self, stream: Stream, setting: str, threads: int) -> None:
        from onestream.preprocess.backends import nvimgcodec as ours

        # The module that is served with.
        nvimgcodec = vars(ours)["nvimgcodec"]
        load, threshold = SETTINGS[setting]
        kinds = [nvimgcodec.Backend(nvimgcodec.BackendKind.HYBRID_CPU_GPU)]
        if load:
            kinds.insert(0, nvimgcodec.Backend(nvimgcodec.BackendKind.HW_GPU_ONLY, load_hint=load))
        self._codec, self._stream = nvimgcodec, stream
        self._decoder = nvimgcodec.Decoder(
            device_id=stream.device.index,
            max_num_cpu_threads=threads,
            backends=kinds,
            options=f":fancy_upsampling=1 nvjpeg_cuda_decoder:hybrid_huffman_threshold={threshold}",
        )
        self._params = nvimgcodec.DecodeParams(
            apply_exif_orientation=True,
            color_spec=nvimgcodec.ColorSpec.SRGB,
            sample_format=nvimgcodec.SampleFormat.I_RGB,
        )
        self._images: list[Any] | None = None

    def run(self, files: Batch) -> None:
        """Decode a batch, always of one size; returns when its pixels are there. Raises where one is not decoded."""
        found = self._decoder.decode(
            [self._codec.CodeStream(file) for file in files],
            images=self._images,
            params=self._params,
            cuda_stream=self._stream.handle,
        )
        # The hardware's call ignores what its stream has still to do, so nothing is queued beyond a batch.
        self._stream.sync()
        images = [one for one in found if one is not None]
        if len(images) < len(files):
            raise ValueError(f"{len(files) - len(images)} of {len(files)} are not decoded")
        self._images = images


def measure(
    device: Device, points: Points, photos: dict[str, list[bytes]], settings: list[str], *,
    threads: list[int], streams: list[int], batch: int, seconds: float,
) -> None:  # fmt: skip
    """Every setting. One that fails at a number of threads is reported, and the next number is measured."""
    for setting in settings:
        for count in threads:
            about = {"part": "codec", "setting": setting, "threads": count, "batch": batch}
            try:
                with ExitStack() as opened:
                    lanes = Lanes(max(streams), partial(_opened, device, setting, count), device=device)
                    opened.callback(lanes.close)
                    for size, files in photos.items():
                        pick = partial(Photos(size, files, seed=SEED).pick, batch)  # type: ignore[arg-type]
                        lanes.warm_up(Decoding.run, pick)
                        for number in streams:
                            rate = lanes.rate(Decoding.run, pick, in_flight=number, duration_s=seconds)
                            points.add(**about, streams=number, size=size, images_per_s=round(rate, 1))
            except Exception as error:  # whatever a library raises: the others are still measured
                points.fail(error, **about)


def _opened(device: Device, setting: str, threads: int) -> Decoding:
    return Decoding(device.stream(), setting, threads)


def main() -> int:
    """Measure; 1 where there is no GPU."""
    options = parser("benchmarks.gpu.codec", __doc__)
    options.add_argument("--setting", action="append", choices=SETTINGS, help="one; may be given several times")
    options.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8], help="of the CPU, for each stream")
    options.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4], help="each with a decoder and a thread")
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--photos", type=int, default=96, help="made of each size")
    options.add_argument("--seconds", type=float, default=0.3, help="of one measurement")
    given = options.parse_args()
    try:
        device = open_device()
    except PreprocessError as error:
        return no_gpu("benchmarks.gpu.codec", error)
    cores = len(os.sched_getaffinity(0))
    photos = {size: photos_of(size, given.photos, threads=cores) for size in given.sizes}
    measure(
        device, Points(given.points), photos, given.setting or [*SETTINGS],
        threads=given.threads, streams=given.streams, batch=given.batch, seconds=given.seconds,
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
