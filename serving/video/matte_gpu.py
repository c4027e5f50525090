"""Persons over another background on a GPU, with CV-CUDA: frames in RGB, composed at full size on one stream.

The steps are those of ``onestream.postprocess.matte.composer``, in RGB, since CV-CUDA composes three channels:

- ``convertto``: the probabilities to the levels of ``alpha``, rounded to nearest, ties to even;
- ``hq_resize``: the matte's window to the frame, bilinear with half-pixel centres, in float32;
- ``composite``: ``int((frame - background) * alpha / 255 + background + 0.5)``, which for every three levels is what
  ``(alpha * frame + (255 - alpha) * background + 127) // 255`` is;
- a blurred background: ``hq_resize`` with antialiasing to cells, ``gaussian``, and ``hq_resize`` back.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from onestream.postprocess.matte.background import covering
from onestream.postprocess.matte.composer import picture_window
from onestream.postprocess.matte.stretch import Levels
from onestream.preprocess import Definition
from onestream.preprocess.cuda.device import INSTALL_GPU, DeviceArray, Stream
from onestream.preprocess.errors import BackendMissing
from onestream.preprocess.geometry import Size
from onestream.serving.pipeline import BlurBackground, ColorBackground, Matte
from onestream.serving.video.matte_gpu_plan import BlurPlan, alpha_line, blur_plan

try:
    import cvcuda
except ImportError as error:
    raise BackendMissing(f"composing on a GPU needs cvcuda and an NVIDIA driver: {INSTALL_GPU} ({error})") from error


class GpuComposer:
    """Composes frames of one size on a stream. Belongs to the thread that makes it, and waits only in its constructor.

    ``definition`` made the network's input, of whose size the probabilities are; ``picture`` is the background of kind
    *picture*, (height, width, 3) uint8 RGB. All memory is allocated here. Raises ``ValueError`` where the definition
    crops.
    """

    def __init__(
        self, options: Matte, definition: Definition, size_hw: Size, *, stream: Stream, picture: Levels | None = None
    ) -> None:
        self._queue = cvcuda.as_stream(stream.handle)
        self._size_hw, self._line = size_hw, alpha_line(options.softness)
        window = picture_window(definition, size_hw)
        canvas_h, canvas_w = cast("Size", definition.output_spec.size_hw)
        canvas = stream.allocate((canvas_h, canvas_w, 1), np.uint8)
        self._canvas_shape = canvas.shape
        self._canvas = _tensor(canvas)
        # A view, not a region of the resize: that would mix in what the network said of the letterbox's bars.
        self._window = _tensor(canvas.window(window.top, window.left, window.height, window.width))
        levels, back = stream.allocate((*size_hw, 1), np.uint8), stream.allocate((*size_hw, 3), np.uint8)
        self._alpha, self._back = _tensor(levels), _tensor(back)
        # Tensors only point to their memory.
        self._memory = [canvas, levels, back]
        self._blur: BlurPlan | None = None
        background = options.background
        if isinstance(background, BlurBackground):
            self._blur = blur_plan(background.radius, size_hw)
            cells = (*self._blur.cells_hw, 3)
            small, smooth = stream.allocate(cells, np.uint8), stream.allocate(cells, np.uint8)
            self._small, self._smooth = _tensor(small), _tensor(smooth)
            self._memory += [small, smooth]
            return
        still = np.empty((*size_hw, 3), np.uint8)
        if isinstance(background, ColorBackground):
            still[:] = background.rgb
        elif picture is not None:
            still[:] = covering(picture, size_hw)
        else:
            raise ValueError("a background of kind picture needs the picture")
        stream.upload(still, back)
        # The copy reads memory of the host that goes away now.
        stream.sync()

    def enqueue(self, frame: DeviceArray, person: DeviceArray, out: DeviceArray) -> None:
        """Queue the composition of one frame.

        ``frame`` and ``out`` are (height, width, 3) uint8 RGB; ``person`` holds the network's probabilities for it,
        float32 (height, width) of the network's size. Raises ``ValueError`` for other shapes, types or gaps.
        """
        _check("frame", frame, (*self._size_hw, 3), np.uint8)
        _check("out", out, (*self._size_hw, 3), np.uint8)
        _check("person", person, self._canvas_shape[:2], np.float32)
        queue = self._queue
        probability = DeviceArray(person.pointer, self._canvas_shape, person.dtype, person.stream, person.owner)
        factor, offset = self._line
        cvcuda.convertto_into(self._canvas, _tensor(probability), factor, offset, stream=queue)
        cvcuda.hq_resize_into(self._alpha, self._window, interpolation=cvcuda.Interp.LINEAR, stream=queue)
        before = _tensor(frame)
        if self._blur is not None:
            plan = self._blur
            cvcuda.hq_resize_into(self._small, before, antialias=True, interpolation=cvcuda.Interp.LINEAR, stream=queue)
            kernel, sigma = (plan.kernel, plan.kernel), (plan.sigma, plan.sigma)
            cvcuda.gaussian_into(self._smooth, self._small, kernel, sigma, cvcuda.Border.REPLICATE, stream=queue)
            cvcuda.hq_resize_into(self._back, self._smooth, interpolation=cvcuda.Interp.LINEAR, stream=queue)
        cvcuda.composite_into(_tensor(out), before, self._back, self._alpha, stream=queue)


def _tensor(array: DeviceArray) -> cvcuda.Tensor:
    """Our array for CV-CUDA, which accepts every object with a CUDA Array Interface but declares its own class."""
    return cvcuda.as_tensor(cast("cvcuda.ExternalBuffer", array), "HWC")


def _check(name: str, array: DeviceArray, shape: tuple[int, ...], dtype: type[np.generic]) -> None:
    if array.shape != shape or array.dtype != dtype or array.strides is not None:
        raise ValueError(f"{name} is {array.dtype} {array.shape}, expected contiguous {np.dtype(dtype)} {shape}")
