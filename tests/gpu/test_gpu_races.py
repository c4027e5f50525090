"""A mixed batch on several streams, small enough to run under ``compute-sanitizer``, which looks for races."""

from __future__ import annotations

from typing import Any

import numpy as np

from onestream.preprocess import BadImage, Definition, compile
from onestream.serving.models.workers import Workers

STREAMS, BATCHES = 2, 6


def test_mixed_batches_on_several_streams_stay_themselves(definition: Definition, files: dict[str, bytes]) -> None:
    """JPEGs that the GPU decodes, formats that the CPU decodes for it, and damaged files, in turns on each stream."""
    names = ["coffee, 1080p 4:2:0", "PNG", "coffee, odd progressive", "WEBP", "EXIF 6", "BMP"]
    whole = [files[name] for name in names]
    batch = [whole[0], b"text", *whole[1:4], whole[2][: len(whole[2]) // 2], *whole[4:]]
    good = [index for index, file in enumerate(batch) if file in whole]

    def open_backend() -> Any:
        return compile(definition.pixels(), backend="cvcuda", device="gpu", max_batch_size=len(batch))

    alone = open_backend()
    expected = [alone.run([batch[index]])[0] for index in good]
    wrong: list[int] = []

    def work(backend: Any, turn: int) -> None:
        order = np.roll(np.arange(len(batch)), turn)
        results = backend.run([batch[index] for index in order])
        by_index = dict(zip(order.tolist(), results, strict=True))
        for index, sample in zip(good, expected, strict=True):
            if isinstance(by_index[index], BadImage) or not np.array_equal(by_index[index], sample):
                wrong.append(index)

    workers: Workers[Any, int] = Workers(STREAMS, open_backend, work)
    for turn in range(BATCHES):
        workers.submit(turn)
    workers.close()
    assert wrong == []
