"""Pixels that DALI made stay alive until they are copied, on a GPU made of host memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from host_gpu import HostDevice, HostStream, view
from host_work import Place

from onestream.preprocess import BadImage
from onestream.preprocess.cuda.step_timer import StepTimer
from onestream.serving.models.one_stream import _Copied

SHAPE = (2, 4, 3)


class Dali:
    """Gives the memory of its pixels to others when nobody holds the tensor."""

    def __init__(self, stream: HostStream) -> None:
        self._queue = stream.queue

    def run_on_device(self, images: list[int]) -> tuple[Any, dict[int, BadImage]]:
        bad = {at: BadImage("corrupt", "it is damaged") for at, image in enumerate(images) if image < 0}
        good = np.array([np.full(SHAPE, image, np.uint8) for image in images if image >= 0])
        return (Tensor(self._queue, good) if good.size else None), bad


class Tensor:
    def __init__(self, queue: Any, pixels: Any) -> None:
        self._memory = queue.allocate(pixels.nbytes, ordered=False)
        place = Place(self._memory.pointer, pixels.shape, pixels.dtype)
        queue.put(lambda: np.copyto(place.values(), pixels), name="DALI")
        queue.wait()

    def data_ptr(self) -> int:
        return self._memory.pointer


def source_on(stream: HostStream) -> tuple[Any, Any]:
    target, timer = stream.allocate((4, *SHAPE), np.uint8), StepTimer(stream)
    timer.start()
    return _Copied(Dali(stream.device.stream()), stream, target, timer), target


def test_pixels_of_dali_reach_the_rows_of_the_network() -> None:
    stream = HostDevice().stream()
    source, target = source_on(stream)
    for images in ([1, 2, 3], [4, -1, 5], [6]):
        filled = source.fill(images)
        stream.sync()
        good = [image for image in images if image >= 0]
        assert [images[index] for index in filled.good] == good
        assert sorted(filled.bad) == [at for at, image in enumerate(images) if image < 0]
        assert view(target)[: len(good), 0, 0, 0].tolist() == good
    assert source.fill([-1]).good == ()
