"""The DALI graphs: a definition, or a definition with its geometry varied, from input nodes to an output node.

Whoever feeds the nodes decides what they are built for: requests (``external_source``), a training loader, a proxy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.preprocess.backends.base import DecodeOptions, Device
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BackendMissing, CannotCompile
from onestream.preprocess.moves import Resize
from onestream.preprocess.plan import Plan
from onestream.preprocess.variation import Variation, canvas_of, resize_of
from onestream.wire.install import install_command

try:
    from nvidia.dali import Pipeline, fn, types
except ImportError as error:
    raise BackendMissing(
        f"the dali backend needs nvidia-dali: {install_command('train')}; {install_command('cpu')} to serve"
    ) from error


@dataclass(frozen=True, slots=True)
class GraphInputs:
    """Nodes that a source feeds to the graph, one value per sample.

    ``encoded``: uint8 bytes. ``anchor``, ``shape``: int32 (y, x) of the part to decode. ``start``, ``end``: float32
    (y, x) of the window inside that part. ``size``: float32 (height, width) of the window after the resize.
    ``offset``: int32 (y, x) of the canvas's corner relative to the window. Of a variation: ``flip`` and
    ``upside_down``, int32 (1,), and ``color``, float32 (channels, channels + 1). What a graph does not need may be
    None.
    """

    encoded: Any
    anchor: Any
    shape: Any
    start: Any
    end: Any
    size: Any
    offset: Any
    flip: Any = None
    upside_down: Any = None
    color: Any = None


def decode_part(inputs: GraphInputs, *, device: Device, decode: DecodeOptions | None = None) -> Any:
    """Node of the decoded part, RGB uint8 HWC, oriented and without alpha; without ``anchor`` that is the whole image.

    On a GPU the whole image is decoded and cut: nvJPEG before 13.3 upsamples the chroma of a part wrongly at its
    border, and nvImageCodec 0.9 fails or crashes on parts (github.com/NVIDIA/nvImageCodec/issues/55).
    """
    if device == "cpu" and inputs.anchor is None:
        return fn.decoders.image(inputs.encoded, device="cpu", output_type=types.RGB, adjust_orientation=True)
    if device == "cpu":
        return fn.decoders.image_slice(
            inputs.encoded,
            inputs.anchor,
            inputs.shape,
            normalized_anchor=False,
            normalized_shape=False,
            axes=[0, 1],
            device="cpu",
            output_type=types.RGB,
            adjust_orientation=True,
        )
    options = decode or DecodeOptions()
    whole = fn.decoders.image(
        inputs.encoded,
        device="mixed",
        output_type=types.RGB,
        adjust_orientation=True,
        # Chroma is upsampled as in libjpeg; without that whole edges differ.
        jpeg_fancy_upsampling=True,
        hw_decoder_load=options.hw_load,
        # Images with more pixels than this have their entropy decoded on the GPU.
        hybrid_huffman_threshold=options.most_cpu_entropy_pixels,
    )
    return fn.slice(whole, start=inputs.anchor, shape=inputs.shape, axes=[0, 1])


def build_graph(
    inputs: GraphInputs, definition: Definition, *, device: Device, decode: DecodeOptions | None = None
) -> Any:
    """Build the whole graph of ``definition`` from its input nodes and return its output node.

    The same function serves requests (fed by ``external_source``) and training loaders. On the CPU the decoded part
    is finished outside the graph (``finish.py``), which is faster and closer to Pillow.
    """
    sample = decode_part(inputs, device=device, decode=decode)
    if definition.color == "gray":
        # Decoding to gray directly takes a JPEG's own luma, up to 12 levels from the luma of its RGB.
        sample = fn.color_space_conversion(sample, image_type=types.RGB, output_type=types.GRAY)
    canvas = definition.output_spec.size_hw
    fill = definition.fills
    if fill and None in canvas:
        raise CannotCompile("dali cannot pad to a size that depends on the image in a graph; cvcuda can on a GPU")
    if any(isinstance(operation, Resize) for operation in definition.geometry):
        sample = fn.resize(
            sample,
            size=list(canvas) if _static_window(definition) else inputs.size,
            roi_start=inputs.start,
            roi_end=inputs.end,
            roi_relative=False,
            antialias=True,
            interp_type=types.INTERP_LINEAR,
        )
    else:
        sample = fn.slice(
            sample,
            start=fn.cast(inputs.start, dtype=types.INT32),
            shape=fn.cast(inputs.size, dtype=types.INT32),
            axes=[0, 1],
        )
    if fill:
        sample = fn.slice(
            sample,
            start=inputs.offset,
            shape=list(canvas),
            axes=[0, 1],
            out_of_bounds_policy="pad",
            fill_values=fill[0],
        )
    return _to_network(_ordered(sample, definition), definition)


def build_varied_graph(
    inputs: GraphInputs, definition: Definition, *, device: Device, decode: DecodeOptions | None = None
) -> Any:
    """Build the graph of ``definition`` with a variation for its geometry: ``anchor`` and ``shape`` are the box.

    Raises ``CannotCompile`` for a filter that DALI has not exactly.
    """
    resize = resize_of(definition, canvas_of(definition))
    if resize.filter != "bilinear" or not resize.antialias or resize.arithmetic != "pil":
        smoothed = "" if resize.antialias else " and antialias false"
        raise CannotCompile(
            f"dali cannot resize with filter {resize.filter!r}{smoothed} and arithmetic {resize.arithmetic!r} exactly "
            "in a graph"
        )
    sample = decode_part(inputs, device=device, decode=decode)
    if definition.color == "gray":
        sample = fn.color_space_conversion(sample, image_type=types.RGB, output_type=types.GRAY)
    sample = fn.resize(sample, size=list(canvas_of(definition)), antialias=True, interp_type=types.INTERP_LINEAR)
    sample = _ordered(fn.flip(sample, horizontal=inputs.flip, vertical=inputs.upside_down), definition)
    sample = fn.coord_transform(sample, MT=inputs.color, dtype=types.UINT8)
    return _to_network(fn.reinterpret(sample, layout="HWC"), definition)


def _ordered(sample: Any, definition: Definition) -> Any:
    """RGB pixels in the definition's order. After the resize there are fewer of them than the decoder's BGR has."""
    if definition.color != "bgr":
        return sample
    return fn.color_space_conversion(sample, image_type=types.RGB, output_type=types.BGR)


def _to_network(sample: Any, definition: Definition) -> Any:
    output, normalize = definition.network_input, definition.normalize
    dtype = {"uint8": types.UINT8, "float16": types.FLOAT16, "float32": types.FLOAT}[output.dtype]
    if normalize is not None:
        return fn.crop_mirror_normalize(
            sample,
            dtype=dtype,
            output_layout=output.layout[1:],
            mean=[value * normalize.scale for value in normalize.mean],
            std=[value * normalize.scale for value in normalize.std],
        )
    if output.layout == "NCHW":
        sample = fn.transpose(sample, perm=[2, 0, 1])
    return sample if output.dtype == "uint8" else fn.cast(sample, dtype=dtype)


DECODE_WHOLE_INPUTS = {"encoded": types.UINT8}
DECODE_INPUTS = {**DECODE_WHOLE_INPUTS, "anchor": types.INT32, "shape": types.INT32}


def graph_inputs(definition: Definition) -> dict[str, Any]:
    """Names and DALI types of the inputs that the whole graph reads; feeding another one is an error."""
    resizes = any(isinstance(operation, Resize) for operation in definition.geometry)
    used = {**DECODE_INPUTS, "start": types.FLOAT}
    if resizes:
        used["end"] = types.FLOAT
    if not resizes or not _static_window(definition):
        used["size"] = types.FLOAT
    if definition.fills:
        used["offset"] = types.INT32
    return used


def graph_values(plan: Plan) -> dict[str, npt.NDArray[Any]]:
    """The values to feed for one image, beside its bytes; see ``GraphInputs``."""
    start, end = zip(*plan.spans, strict=True)
    return {
        **plan.part_values,
        "start": np.array(start, np.float32),
        "end": np.array(end, np.float32),
        "size": np.array(plan.window.size_hw, np.float32),
        "offset": np.array((-plan.offset[0], -plan.offset[1]), np.int32),
    }


VARIED_INPUTS = {**DECODE_INPUTS, "flip": types.INT32, "upside_down": types.INT32, "color": types.FLOAT}
"""Names and DALI types of the inputs of the varied graph."""


def varied_values(variation: Variation, channels: int) -> dict[str, npt.NDArray[Any]]:
    """The values to feed to the varied graph for one image, beside its bytes.

    Raises ``CannotCompile`` for what is more than a box, mirrored or not, and a linear change of colour.
    """
    box, color = variation.box, variation.color
    if box is None or variation.canvas_hw is not None or (variation.changes and color is None):
        raise CannotCompile(
            f"dali on a GPU varies images by a box on the whole canvas, flips and linear_color; got {variation}"
        )
    return {
        "anchor": np.array((box.top, box.left), np.int32),
        "shape": np.array((box.height, box.width), np.int32),
        "flip": np.array([variation.flip], np.int32),
        "upside_down": np.array([variation.upside_down], np.int32),
        "color": np.eye(channels, channels + 1, dtype=np.float32) if color is None else color,
    }


def new_pipeline(*, device: Device, max_batch_size: int, threads: int, gpu_index: int = 0) -> Pipeline:
    """An empty pipeline that gives back what it is fed and survives a batch that cannot be decoded.

    Raises ``CannotCompile`` for a GPU where there is none.
    """
    if device == "gpu":
        from onestream.preprocess.cuda.device import driver_visible

        if not driver_visible():
            raise CannotCompile("dali cannot run on a GPU here: no NVIDIA driver is loaded; use device='cpu'")
    # A depth of 1 keeps request and response together; the dynamic executor survives a failed batch.
    return Pipeline(
        batch_size=max_batch_size,
        num_threads=threads,
        device_id=gpu_index if device == "gpu" else None,
        prefetch_queue_depth=1,
        exec_dynamic=True,
    )


def external_inputs(used: dict[str, Any]) -> GraphInputs:
    """Input nodes that are fed by name with ``Pipeline.run``."""
    nodes = {
        name: fn.external_source(name=name, dtype=dtype, ndim=2 if name == "color" else 1)
        for name, dtype in used.items()
    }
    return GraphInputs(**{name: nodes.get(name) for name in GraphInputs.__slots__})


def _static_window(definition: Definition) -> bool:
    """Whether the kept window has the canvas's size for every image."""
    return not definition.fills and None not in definition.output_spec.size_hw
