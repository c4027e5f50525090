"""The first minutes on a GPU: memory, a kernel of ours, one network, one JPEG and one resize, each by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
from gpu_files import encoded
from gpu_network import any_engine
from PIL import Image

from onestream.preprocess import CenterCrop, Decode, Definition, Output, Resize, compile
from onestream.preprocess.cuda.device import Device
from onestream.preprocess.definition import PreprocessingStage
from onestream.preprocess.tolerances import compare
from onestream.serving.pipeline import GpuOptions

ADD_ONE = """
extern "C" __global__ void add_one(unsigned char* values, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) values[at] += 1;
}
"""
RESIZED = Definition(
    operations=[
        Decode(),
        Resize(mode="shorter", size=256),
        CenterCrop(size=(224, 224)),
        Output(layout="NHWC", dtype="uint8"),
    ]
)


def test_memory_goes_there_and_back(device: Device, record: Any) -> None:
    record("GPU", device.name)
    record("compute capability", ".".join(map(str, device.compute_capability)))
    stream = device.stream()
    sent = stream.pinned((3, 1000), np.int32)
    sent[...] = np.arange(3000).reshape(3, 1000)
    there, back = stream.allocate(sent.shape, sent.dtype), stream.pinned(sent.shape, sent.dtype)
    stream.upload(sent, there)
    stream.fill(there.rows(1, 2), 0)
    stream.download(there, back)
    stream.sync()
    np.testing.assert_array_equal(back[[0, 2]], sent[[0, 2]])
    assert not back[1].any()


def test_a_kernel_is_compiled_and_runs(device: Device) -> None:
    stream = device.stream()
    values, back = stream.allocate((1000,), np.uint8), stream.pinned((1000,), np.uint8)
    stream.fill(values, 41)
    stream.launch(device.kernel(ADD_ONE, "add_one"), (8, 1), (128, 1), [values.pointer, np.int32(900)])
    stream.download(values, back)
    stream.sync()
    np.testing.assert_array_equal(back, [42] * 900 + [41] * 100)


def test_one_network_runs(device: Device, network: Any, photos: dict[str, Image.Image], record: Any) -> None:
    engine = any_engine(device, GpuOptions(max_batch_size=2), record)
    stream = device.stream()
    session = engine.open(stream)
    pixels = stream.pinned(session.input.shape, np.uint8)
    for row, name in enumerate(("cat", "coffee")):
        pixels[row] = photos[name].resize((224, 224))
    class_ids = session.outputs["class_ids"]
    found = stream.pinned(class_ids.shape, class_ids.dtype)
    stream.upload(pixels, session.input)
    session.enqueue(2)
    stream.download(class_ids, found)
    stream.sync()
    assert [row[0] for row in found] == [network(one).argmax() for one in pixels]
    engine.close()


def within(definition: Definition, file: bytes, stage: PreprocessingStage, record: Any) -> bool:
    """Whether a file's samples are the reference's, within the table."""
    compiled = compile(definition, backend="cvcuda", device="gpu", max_batch_size=1)
    (seen,), (expected,) = compiled.run([file]), compile(definition).run([file])
    compiled.close()
    found = compare(expected, seen, definition=definition, stage=stage, backend="cvcuda", device="gpu")
    record(f"smoke, {stage}: largest difference, levels", found.max)
    return found.within


def test_one_jpeg_is_decoded(photos: dict[str, Image.Image], definition: Definition, record: Any) -> None:
    file = encoded(photos["coffee"].resize((640, 480)), "JPEG", quality=90)
    assert within(definition.stage("decode"), file, "decode", record)


def test_one_picture_is_resized_as_pillow_does(photos: dict[str, Image.Image], record: Any) -> None:
    assert within(RESIZED, encoded(photos["coffee"].resize((641, 479)), "PNG"), "crop", record)
