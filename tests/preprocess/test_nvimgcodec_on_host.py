"""Decoding for a GPU of host memory: second chances, images that are used again, and memory that is still needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from cvcuda_on_host import Compile, cvcuda_on_host
from host_gpu import HostDevice, HostNvimgcodec, HostStream
from host_work import Place
from image_files import encode
from sample_images import noise, photo
from test_isolation import BAD
from test_parity import CLASSIFY

from onestream.preprocess import Limits, compile
from onestream.preprocess.backends import batches, nvimgcodec
from onestream.preprocess.backends.base import DecodeOptions
from onestream.preprocess.backends.nvimgcodec import ImageDecoder
from onestream.serving.pipeline import GpuOptions

SEEDS = range(5)
BRIGHTER = 40
JPEGS = [encode(photo(name).resize((320, 240)), "JPEG", quality=90) for name in ("coffee", "chelsea", "rocket")]
PNGS = [encode(photo(name).resize((320, 240)), "PNG") for name in ("coffee", "chelsea", "rocket")]
SMALL = encode(photo("astronaut").resize((90, 70)), "JPEG", quality=90)
LARGE = encode(photo("astronaut").resize((640, 400)), "JPEG", quality=90)


@pytest.fixture
def codec(monkeypatch: pytest.MonkeyPatch) -> HostNvimgcodec:
    """A GPU whose pictures can be told from the CPU's."""
    found = HostNvimgcodec()
    found.rounded = lambda levels: levels + BRIGHTER
    monkeypatch.setattr(nvimgcodec, "nvimgcodec", found)
    return found


@pytest.fixture
def on_host(codec: HostNvimgcodec) -> Iterator[Compile]:
    """Compiles the backend for a stream."""
    with cvcuda_on_host(codec) as compile_on_host:
        yield lambda stream, **options: compile_on_host(CLASSIFY.pixels(), stream=stream, **options)


def decoder_on(stream: HostStream, *, streams: int = 4) -> Any:
    return ImageDecoder(stream, options=DecodeOptions(streams=streams), threads=1)


def decoded(decoder: ImageDecoder, files: Sequence[bytes], stream: HostStream) -> list[Any]:
    images = decoder.decode([(file, Limits().check(file)) for file in files])
    stream.sync()
    return images


def check(file: bytes, image: Any, *, by_gpu: bool) -> None:
    """Whether an image shows a file now."""
    (pixels,) = compile(CLASSIFY.stage("decode"), backend="dali").run([file])
    expected = np.clip(pixels.astype(int) + (BRIGHTER if by_gpu else 0), 0, 255)
    np.testing.assert_array_equal(Place.of(image).values(), expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_the_gpu_rejects_the_cpu_decodes(codec: HostNvimgcodec, seed: int) -> None:
    stream = HostDevice(seed=seed).stream()
    decoder = decoder_on(stream)
    codec.rejects = lambda source: source.width == 90
    files = [JPEGS[0], SMALL, PNGS[1], BAD["JPEG that only the decoder refuses"], JPEGS[2]]
    for chances in (2, 4):
        images = decoded(decoder, files, stream)
        # The damaged one has a second chance, too.
        assert decoder.second_chances == chances
        assert images[3] is None
        for at, by_gpu in ((0, True), (1, False), (2, False), (4, True)):
            check(files[at], images[at], by_gpu=by_gpu)


@pytest.mark.usefixtures("codec")
@pytest.mark.parametrize("seed", SEEDS)
def test_images_are_used_again_by_the_next_batch(seed: int) -> None:
    stream = HostDevice(seed=seed).stream()
    decoder = decoder_on(stream, streams=1)
    places = []
    for files in ([JPEGS[0], JPEGS[1]], [JPEGS[2], SMALL], [LARGE, JPEGS[0]], [JPEGS[1], JPEGS[2], SMALL]):
        images = decoded(decoder, files, stream)
        for file, image in zip(files, images, strict=True):
            check(file, image, by_gpu=True)
        places.append([image.__cuda_array_interface__["data"][0] for image in images])
    assert places[1] == places[0]
    assert places[2][0] != places[0][0]
    assert places[2][1] == places[0][1]
    assert not set(places[3]) & set(places[2]), "there are too few to use again"


@pytest.mark.parametrize("streams", [1, 2, 4])
@pytest.mark.parametrize("seed", SEEDS)
def test_batches_that_nobody_waits_for_keep_their_own_pixels(on_host: Compile, seed: int, streams: int) -> None:
    """Kept images, images of the CPU and canvases are all written again while the batch before is pending."""
    stream = HostDevice(seed=seed).stream()
    backend = on_host(stream, decode=DecodeOptions(streams=streams))
    batches = [[JPEGS[0], PNGS[0], SMALL], [PNGS[1], JPEGS[1], LARGE], JPEGS, [JPEGS[1], SMALL, JPEGS[0]], [PNGS[2]]]
    seen = []
    for batch in batches:
        queued = backend.enqueue(batch)
        assert queued.good == tuple(range(len(batch)))
        result = stream.pinned((len(batch), 224, 224, 3), np.uint8)
        for row, sample in enumerate(queued.samples):
            stream.download(sample, result[row])
        seen.append(result)
    stream.sync()
    alone = on_host(HostDevice().stream(), max_batch_size=1)
    for batch, result in zip(batches, seen, strict=True):
        np.testing.assert_array_equal(result, alone.run(batch))


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_images_beyond_what_is_kept_live_until_the_stream_has_passed(
    on_host: Compile, monkeypatch: pytest.MonkeyPatch, seed: int, streams: int
) -> None:
    monkeypatch.setattr(nvimgcodec, "_KEPT_BYTES", 320 * 240 * 3 * streams)
    expected_pixels = on_host(HostDevice().stream()).run([JPEGS[0]])[0]
    backend = on_host(HostDevice(seed=seed).stream(), decode=DecodeOptions(streams=streams))
    for _ in range(2):
        np.testing.assert_array_equal(backend.run([JPEGS[0]] * 4), [expected_pixels] * 4)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_hardware_writes_over_nothing_that_is_still_to_be_read(
    on_host: Compile, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A batch in groups, of which each is decoded into the images of the one before."""
    grouped = partial(batches.groups, max_pixels=320 * 240)
    monkeypatch.setattr("onestream.preprocess.backends.cvcuda.groups", grouped)
    backend = on_host(HostDevice(seed=seed).stream(), decode=DecodeOptions(hw_load=1.0))
    alone = on_host(HostDevice().stream(), max_batch_size=1)
    np.testing.assert_array_equal(backend.run(JPEGS), alone.run(JPEGS))


@pytest.mark.parametrize(
    ("options", "pixels"),
    [
        (GpuOptions(), 0),
        (GpuOptions(cpu_entropy_megapixels=0.25), 250_000),
        (GpuOptions(decode="hybrid", cpu_entropy_megapixels=0.25), 2**31 - 1),
    ],
)
def test_each_stream_has_a_decoder_with_its_threads(codec: HostNvimgcodec, options: GpuOptions, pixels: int) -> None:
    made, host = [], codec.Decoder
    codec.Decoder = lambda **given: made.append(given) or host(**given)
    ImageDecoder(HostDevice().stream(), options=options.decoding, threads=6)
    _, *decoders = made
    assert [one["max_num_cpu_threads"] for one in decoders] == [2] * 4
    assert {one["options"].rpartition("=")[2] for one in decoders} == {str(pixels)}


FORMATS = {
    "png": PNGS[0],
    "webp": encode(photo("coffee"), "WEBP", lossless=True),
    "bmp": encode(photo("coffee").resize((200, 100)), "BMP"),
    "tiff": encode(noise(99, 120), "TIFF"),
    "second chance": SMALL,
}


@pytest.mark.parametrize("form", FORMATS)
def test_images_of_the_cpu_are_held_until_the_stream_has_passed(form: str, on_host: Compile, codec: Any) -> None:
    """``Image.cuda`` gives memory that is freed at once, whatever is queued; nobody else holds it after ``enqueue``."""
    codec.rejects = lambda source: source.width == 90
    for seed in SEEDS:
        backend = on_host(HostDevice(seed=seed).stream())
        samples = [backend.run([FORMATS[form]])[0] for _ in range(2)]
        np.testing.assert_array_equal(*samples)
