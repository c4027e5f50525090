"""Decoding with nvImageCodec: JPEGs on a GPU's stream, everything else and what the GPU rejects on the CPU.

nvJPEG's CUDA decoder is told to upsample chroma as libjpeg does ("fancy"); its entropy decoding runs on the GPU or on
the CPU. The JPEG hardware of some GPUs is used only where a share is asked for: it may upsample otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from onestream.preprocess.backends.base import DecodeOptions
from onestream.preprocess.cuda.device import INSTALL_GPU, Stream
from onestream.preprocess.errors import BackendMissing
from onestream.preprocess.headers.reader import Encoded, Header, for_decoders

try:
    from nvidia import nvimgcodec
except ImportError as error:
    raise BackendMissing(f"decoding on a GPU needs nvidia-nvimgcodec: {INSTALL_GPU}") from error

_KEPT_BYTES = 512 * 1024 * 1024
"""Of the images that are used again, of all streams of a decoder."""


class ImageDecoder:
    """Decodes batches to RGB, 8 bit, oriented, interleaved, for one thread at a time.

    With a ``stream`` the images are on its GPU, ordered on it, and valid until the next ``decode``; without one they
    are on the host, and only the CPU decodes. What the CPU decoded stays on the GPU until later images of the CPU are
    there. ``threads`` are CPU threads, of which each of the ``options.streams`` has at least one. ``second_chances``
    counts the JPEGs that the GPU rejected and the CPU was asked for.
    """

    def __init__(self, stream: Stream | None, *, options: DecodeOptions, threads: int) -> None:
        self._stream, self._has_hardware = stream, _has_hardware(options)
        self.second_chances = 0
        self._params = nvimgcodec.DecodeParams(
            apply_exif_orientation=True,
            color_spec=nvimgcodec.ColorSpec.SRGB,
            sample_format=nvimgcodec.SampleFormat.I_RGB,
        )
        self._on_cpu = nvimgcodec.Decoder(
            device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY,
            max_num_cpu_threads=threads,
            backends=[nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)],
            options=":fancy_upsampling=1",
        )
        self._lanes: list[_Lane] = []
        if stream is not None:
            # The hardware is given a batch at once, and must find its stream idle.
            count = 1 if self._has_hardware else options.streams
            streams = [stream] if count == 1 else [stream.device.stream() for _ in range(count)]
            self._lanes = [
                _Lane(one, options, params=self._params, threads=-(-threads // count), most_kept=_KEPT_BYTES // count)
                for one in streams
            ]
            self._threads = ThreadPoolExecutor(max(1, count - 1), "decode", initializer=stream.device.enter)
        self._moved: list[nvimgcodec.Image] = []

    def decode(self, images: Sequence[tuple[Encoded, Header]]) -> list[nvimgcodec.Image | None]:
        """One (height, width, 3) image for each encoded one with its header, None where it is damaged."""
        streams = [
            nvimgcodec.CodeStream(np.frombuffer(for_decoders(data, header), np.uint8)) for data, header in images
        ]
        decoded: list[nvimgcodec.Image | None] = [None] * len(streams)
        jpegs = [index for index, (_, header) in enumerate(images) if header.gray_or_ycc] if self._lanes else []
        for index, image in zip(jpegs, self._decode_on_gpu([streams[index] for index in jpegs]), strict=True):
            decoded[index] = image
            self.second_chances += image is None
        rest = [index for index, image in enumerate(decoded) if image is None]
        for index, image in zip(rest, self._decode_on_cpu([streams[index] for index in rest]), strict=True):
            decoded[index] = image
        return decoded

    def _decode_on_gpu(self, files: Sequence[nvimgcodec.CodeStream]) -> list[nvimgcodec.Image | None]:
        if not files:
            return []
        assert self._stream is not None
        if self._has_hardware:
            # nvJPEG's hardware writes when the call is made, whatever the stream has still to do (torchcodec 1634).
            self._stream.wait_unless_idle()
        lanes = self._lanes[: len(files)]
        for lane in lanes:
            # Images that are used again, and those that are freed, were read by what was queued before.
            lane.stream.follow(self._stream)
        parts = [files[at :: len(lanes)] for at in range(len(lanes))]
        others = [self._threads.submit(lane.decode, part) for lane, part in zip(lanes[1:], parts[1:], strict=True)]
        try:
            decoded = [lanes[0].decode(parts[0])]
        finally:
            # Of all, also where one fails: a decoder takes one call at a time.
            for other in others:
                other.exception()
        decoded += [other.result() for other in others]
        images: list[nvimgcodec.Image | None] = [None] * len(files)
        for at, lane in enumerate(lanes):
            images[at :: len(lanes)] = decoded[at]
            self._stream.follow(lane.stream)
        return images

    def _decode_on_cpu(self, files: Sequence[nvimgcodec.CodeStream]) -> list[nvimgcodec.Image | None]:
        if not files:
            return []
        images = self._on_cpu.decode(files, params=self._params)
        if self._stream is None:
            return images
        # The copy waits: its source is memory of the host that goes away with the image.
        index, handle = self._stream.device.index, self._stream.handle
        moved = [image if image is None else image.cuda(device_id=index, cuda_stream=handle) for image in images]
        # Their memory is freed at once, not in the order of the stream: those before go now, after a wait for it.
        self._moved = [image for image in moved if image is not None] or self._moved
        return moved


class _Lane:
    """A decoder on a stream of its own. nvImageCodec's decoders take one call at a time, and a stream for all of it."""

    def __init__(
        self, stream: Stream, options: DecodeOptions, *, params: nvimgcodec.DecodeParams, threads: int, most_kept: int
    ) -> None:
        self.stream, self._params, self._most_kept = stream, params, most_kept
        self._decoder = nvimgcodec.Decoder(
            device_id=stream.device.index,
            max_num_cpu_threads=threads,
            backends=_gpu_backends(options),
            # nvJPEG decodes the entropy of images with more pixels than the threshold on the GPU.
            options=":fancy_upsampling=1 nvjpeg_cuda_decoder:hybrid_huffman_threshold="
            f"{options.most_cpu_entropy_pixels}",
        )
        self._kept: list[nvimgcodec.Image] = []

    def decode(self, files: Sequence[nvimgcodec.CodeStream]) -> list[nvimgcodec.Image | None]:
        """Decode into images that are used again, in the order of the stream.

        All are kept until the next call: their memory is freed in the order of this stream, not of those that read it.
        """
        kept = _within(self._kept, self._most_kept)
        again = kept[: len(files)] if len(kept) >= len(files) else None
        images = self._decoder.decode(files, images=again, params=self._params, cuda_stream=self.stream.handle)
        self._kept = [*(image for image in images if image is not None), *(kept[len(files) :] if again else ())]
        return images


def on_host(image: nvimgcodec.Image) -> npt.NDArray[np.uint8]:
    """An image that was decoded without a stream, as an array that shares its memory."""
    return np.asarray(image)


def _has_hardware(options: DecodeOptions) -> bool:
    return options.placement == "gpu" and options.hw_load > 0


def _gpu_backends(options: DecodeOptions) -> list[nvimgcodec.Backend]:
    backends = [nvimgcodec.Backend(nvimgcodec.BackendKind.HYBRID_CPU_GPU)]
    if _has_hardware(options):
        backends.insert(0, nvimgcodec.Backend(nvimgcodec.BackendKind.HW_GPU_ONLY, load_hint=options.hw_load))
    return backends


def _within(images: list[nvimgcodec.Image], most_bytes: int) -> list[nvimgcodec.Image]:
    """The images that may be kept, by the memory that they take."""
    kept, size = [], 0
    for image in images:
        size += image.capacity
        if size > most_bytes:
            break
        kept.append(image)
    return kept
