"""What the fused form does with encoded pictures on a GPU, in Triton's model and in processes without Triton."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onestream.postprocess.kinds import Postprocess, Tensors
from onestream.postprocess.parameters import Parameters
from onestream.preprocess import BadImage, Definition
from onestream.preprocess.cuda.device import Device
from onestream.preprocess.headers.reader import Encoded, read_header
from onestream.serving.engine import DeviceEngine, open_engine
from onestream.serving.engine.network_files import NETWORK_FILE, gpu_network
from onestream.serving.graph.onnx_postprocess import fused_network
from onestream.serving.models.one_stream import OneStream
from onestream.serving.pipeline import GpuOptions


@dataclass(frozen=True, slots=True)
class GpuSteps:
    """A pipeline on one stream of a GPU, and what of its postprocessing is the host's. For one thread at a time.

    ``told`` is called with a step's name and its GPU time in ms.
    """

    stream: OneStream
    postprocess: Postprocess
    told: Callable[[str, float], None] = lambda _step, _milliseconds: None

    def __call__(self, images: Sequence[Encoded], parameters: Sequence[Parameters] = ()) -> list[Tensors | BadImage]:
        """The outputs of each picture, with a batch dimension of 1, or why it is refused. Raises as the stream does.

        ``parameters`` are those of each picture's request, or empty.
        """
        result = self.stream.run(images)
        for step, milliseconds in result.step_ms.items():
            self.told(step, milliseconds)
        found: dict[int, Tensors | BadImage] = dict(result.bad)
        if result.good:
            sizes = [read_header(images[index]).oriented_hw for index in result.good]
            own = [parameters[index] for index in result.good] if parameters else ()
            found |= zip(result.good, self.postprocess(result.outputs, sizes, own), strict=True)
        return [found[index] for index in range(len(images))]


def open_fused_engine(
    version_folder: Path,
    postprocess_json: str,
    *,
    options: GpuOptions,
    device: Device,
    definition: Definition,
    progress: Callable[[str], None] = lambda _: None,
) -> DeviceEngine:
    """The engine of a fused model, whose network lies in the folder of a version.

    ``postprocess_json`` is the ``postprocess`` parameter of its configuration; the rest is as of ``open_engine``.
    """
    network = gpu_network(version_folder / NETWORK_FILE, options.network_precision)
    return open_engine(
        fused_network(network, postprocess_json),
        options=options,
        device=device,
        definition=definition,
        progress=progress,
    )
