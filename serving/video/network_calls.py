"""Asks the network's model for the answers to frames, inside the server, so that those of many streams share its
batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import triton_python_backend_utils as pb_utils

from onestream.postprocess.kinds import Postprocess, Tensors
from onestream.postprocess.parameters import Parameters
from onestream.preprocess.geometry import Size
from onestream.preprocess.video.streams.stream import StreamFrame
from onestream.wire.refusals import QUEUE_FULL
from onestream.wire.tensor_names import IMAGE_SIZE, PIXELS

if TYPE_CHECKING:
    import numpy.typing as npt

    from onestream.preprocess.cuda.device import DeviceArray
    from onestream.serving.video.gpu import GpuStreams


class Overloaded(RuntimeError):
    """The network's queue is full, or the frames waited in it for too long."""


class NetworkCalls:
    """Calls of one model. ``outputs`` are the names of the network's, which ``postprocess`` takes.

    ``takes_size``: the network takes the size of each frame.
    """

    def __init__(self, model: str, outputs: list[str], postprocess: Postprocess, *, takes_size: bool = False) -> None:
        self._model, self._outputs, self._postprocess, self._takes_size = model, outputs, postprocess, takes_size

    def asking(
        self, frames: list[StreamFrame], parameters: list[Parameters], gpu: GpuStreams | None
    ) -> Callable[[], list[Tensors]]:
        """A function that asks for the answers to frames, each without a batch dimension, by its stream's parameters.

        ``gpu`` is where frames may lie. It raises ``Overloaded`` where there is no room for them now; then it may be
        called again.
        """
        # Made once, and held: memory on a GPU must outlive its tensor.
        batch, sizes = _batch([frame.pixels for frame in frames], gpu), [frame.size_hw for frame in frames]
        return lambda: self._ask(_tensor(batch, gpu), sizes, parameters)

    def _ask(self, tensor: Any, sizes: list[Size], parameters: list[Parameters]) -> list[Tensors]:
        size = [pb_utils.Tensor(IMAGE_SIZE, np.array(sizes, np.int32))] if self._takes_size else []
        request = pb_utils.InferenceRequest(
            model_name=self._model,
            requested_output_names=self._outputs,
            inputs=[tensor, *size],
            # A network on a GPU would leave its outputs there.
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU),
        )
        response = request.exec()
        if response.has_error():
            message = response.error().message()
            raise Overloaded(message) if any(text in message for text in QUEUE_FULL) else RuntimeError(message)
        outputs = {name: pb_utils.get_output_tensor_by_name(response, name).as_numpy() for name in self._outputs}
        found = self._postprocess(outputs, sizes, parameters)
        return [{name: value[0] for name, value in one.items()} for one in found]


def _batch(pixels: list[Any], gpu: GpuStreams | None) -> npt.NDArray[np.uint8] | DeviceArray:
    """Frames as one array; on the GPU where any of them is there."""
    if gpu is not None and not all(isinstance(one, np.ndarray) for one in pixels):
        return gpu.gather(pixels)
    return np.ascontiguousarray(pixels[0])[None] if len(pixels) == 1 else np.stack(pixels)


def _tensor(batch: npt.NDArray[np.uint8] | DeviceArray, gpu: GpuStreams | None) -> Any:
    if isinstance(batch, np.ndarray):
        return pb_utils.Tensor(PIXELS, batch)
    assert gpu is not None
    return gpu.tensor(batch)
