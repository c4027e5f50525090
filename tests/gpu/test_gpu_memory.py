"""Memory stays flat however the sizes of images vary, and bad images change nothing for good ones."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from gpu_files import encoded
from PIL import Image

from onestream.preprocess import BadImage, Definition, compile
from onestream.preprocess.cuda.device import Device
from onestream.preprocess.tolerances import compare

BATCHES, DAMAGED = 2000, 150
KINDS = ("cvcuda", "dali")


def free_mib(device: Device) -> float:
    """Free memory of the GPU."""
    from cuda.bindings import driver

    device.core.sync()
    error, free, _total = driver.cuMemGetInfo()
    assert int(error) == 0
    return float(free) / 2**20


def assert_flat(free: list[float], record: Any, what: str, *, most: int = 64) -> None:
    """The first half reaches the largest batch; after it nothing may be added but the allocators' own slack."""
    grown = free[len(free) // 2] - free[-1]
    record(f"{what}, growth in MiB", grown, f"< {most}")
    assert grown < most


@pytest.mark.parametrize("backend", KINDS)
def test_memory_is_flat_over_batches_of_random_sizes(
    backend: Any, device: Device, definition: Definition, photos: dict[str, Image.Image], record: Any
) -> None:
    chosen = random.Random(5)
    names = sorted(photos)
    sizes = [(chosen.randrange(40, 1400), chosen.randrange(40, 1400)) for _ in range(150)]
    pool = [encoded(photos[names[i % len(names)]].resize(size), "JPEG", quality=80) for i, size in enumerate(sizes)]
    compiled = compile(definition.pixels(), backend=backend, device="gpu", max_batch_size=8)
    free: list[float] = []
    for number in range(BATCHES):
        results = compiled.run(chosen.sample(pool, chosen.randrange(1, 9)))
        assert not any(isinstance(one, BadImage) for one in results)
        if number % (BATCHES // 20) == 0:
            free.append(free_mib(device))
    compiled.close()
    assert_flat(free, record, f"{backend}: GPU memory over the second half of {BATCHES} batches")


@pytest.mark.parametrize("backend", KINDS)
def test_damaged_files_hurt_only_themselves(
    backend: Any, definition: Definition, files: dict[str, bytes], record: Any
) -> None:
    chosen = random.Random(9)
    good = [data for name, data in files.items() if "4:" in name]
    compiled = compile(definition.pixels(), backend=backend, device="gpu", max_batch_size=10)
    alone = [compiled.run([data])[0] for data in good]
    damaged = []
    for _ in range(DAMAGED):
        data = bytearray(chosen.choice([*files.values()]))
        if chosen.random() < 0.5:
            damaged.append(bytes(data[: chosen.randrange(len(data))]))
        else:
            for _ in range(chosen.choice((1, 4, 64))):
                data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
            damaged.append(bytes(data))
    refused = 0
    for start in range(0, len(damaged), 5):
        part = damaged[start : start + 5]
        batch = [x for pair in zip(part, good[:5], strict=False) for x in pair]
        results = compiled.run(batch)
        refused += sum(isinstance(one, BadImage) for one in results[::2])
        for seen, expected in zip(results[1::2], alone[:5], strict=False):
            assert not isinstance(seen, BadImage)
            np.testing.assert_array_equal(seen, expected)
    record(f"{backend}: damaged files refused of {len(damaged)} (others decode to some picture)", refused)
    assert refused >= 0.4 * DAMAGED
    if backend == "cvcuda":
        record("cvcuda: JPEGs that the GPU rejected and the CPU was asked for", compiled.second_chances)


def test_a_jpeg_that_was_cut_short_with_an_end_marker_is_a_picture(
    definition: Definition, files: dict[str, bytes], record: Any
) -> None:
    """nvJPEG takes it. What it decodes is right, and what is missing shows no image before."""
    whole, cut = files["coffee, 1080p 4:2:0"], definition.stage("decode")
    early = whole[: len(whole) // 3] + b"\xff\xd9"
    compiled = compile(cut, backend="cvcuda", device="gpu", max_batch_size=2)
    pictures = []
    for before in ("cat, 1080p 4:2:0", "temple, 1080p 4:4:4"):
        compiled.run([files[before]])
        pictures += compiled.run([early])
    assert compiled.second_chances == 0
    for one in pictures:
        assert not isinstance(one, BadImage)
    np.testing.assert_array_equal(*pictures)
    expected, complete = compile(cut).run([early, whole])
    rows = int(np.flatnonzero((expected != complete).any(axis=(1, 2)))[0]) // 16 * 16
    assert rows > 100
    top, rest = ((slice(0, rows),), (slice(rows, None),))
    there = compare(expected[top], pictures[0][top], definition=cut, stage="decode", backend="cvcuda", device="gpu")
    missing = float(np.abs(pictures[0][rest].astype(int) - expected[rest]).mean())
    record("a JPEG cut short: largest difference where there is data, levels", there.max)
    record("a JPEG cut short: mean difference to libjpeg's filling, levels", missing)
    assert there.within
