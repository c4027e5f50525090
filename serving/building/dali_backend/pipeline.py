"""The preprocessing of a pipeline for Triton's DALI backend; needs nothing but ``nvidia.dali``.

Input ``image``: one encoded file a sample. Output: uint8 pixels, height x width x channels, before normalization.

Sizes follow torchvision, where DALI's own size arguments would round otherwise: the proportional side is truncated, an
odd centre offset is rounded half to even. They are computed from the file's header with integers, as vectors
(height, width). Only the part of the image that the crop keeps is decoded and resized.
"""

import os
from inspect import signature
from typing import Any

from nvidia.dali import fn, math, pipeline_def, types
from nvidia.dali.plugin.triton import autoserialize

# begin settings
COLOR = "rgb"
RESIZE: dict[str, Any] | None = {"mode": "shorter", "size": 256, "rounding": "truncate"}
PLACES: list[dict[str, Any]] = [{"op": "center_crop", "size": [224, 224]}]
FILL: int | None = None
MAX_BODY_BYTES = 33554432
MAX_PIXELS = 25000000
MAX_BATCH_SIZE = 64
THREADS = 2
GPU = True
HW_DECODER_LOAD = 0.9
# end settings

# Before DALI 2.2 only experimental operators know orientations, and a turned image cannot be decoded in part.
DECODES_PARTS = "adjust_orientation" in signature(fn.peek_image_shape).parameters
ON_GPU = GPU and (os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg"))


def vector(size: list[int]) -> Any:
    """A constant (height, width)."""
    return types.Constant(size, dtype=types.INT64, device="cpu")


def within_limits(encoded: Any, source: Any, size: Any) -> Any:
    """The same bytes; an error, before anything is decoded, for a file of too many bytes or pixels."""
    count = encoded.shape(dtype=types.INT32)
    # Proportional sizes are both larger or both smaller, and an exact one is as large for every image.
    largest = source if RESIZE is None or RESIZE["mode"] == "exact" else math.max(source, size)
    too_large = (count > MAX_BODY_BYTES) | (largest[0] * largest[1] > MAX_PIXELS)
    # Asking for one byte more than there is makes the operator refuse the sample.
    return fn.slice(encoded, start=0, shape=count + too_large, axes=[0], out_of_bounds_policy="error")


def resized(source: Any) -> Any:
    """Size after the resize."""
    if RESIZE is None:
        return source
    height, width = source[0], source[1]
    if RESIZE["mode"] == "exact":
        return vector(RESIZE["size"])
    if RESIZE["mode"] == "fit":
        box_height, box_width = RESIZE["size"]
        tall = fn.cast(height * box_width >= width * box_height, dtype=types.INT64)
        target, side = box_width + tall * (box_height - box_width), width + tall * (height - width)
    else:
        pick = math.min if RESIZE["mode"] == "shorter" else math.max
        target, side = RESIZE["size"], pick(height, width)
    whole = source * target // side
    if RESIZE["rounding"] == "nearest":
        twice_rest = 2 * (source * target - whole * side)
        whole = whole + ((twice_rest > side) | ((twice_rest == side) & ((whole & 1) > 0)))
    # A shorter side that is exact leaves none below it.
    return whole if RESIZE["mode"] == "shorter" else math.max(whole, 1)


def corner(place: dict[str, Any], canvas: Any) -> Any:
    """Top left corner of what a crop or pad keeps; negative where it reaches outside the image."""
    if place.get("align") == "top_left":
        return vector([0, 0])
    more = canvas - vector(place["size"])
    if FILL is None:
        return half_to_even(more)
    return half_to_even(math.max(more, 0)) - math.max(-more, 0) // 2


def half_to_even(count: Any) -> Any:
    """Half of a count that is not negative, a half of one rounded to even."""
    return (count + (count // 2 & 1)) // 2


def window(source: Any) -> tuple[Any, Any, Any, Any]:
    """Size after the resize; the first and the stop corner of the part of it that is kept; the canvas's corner."""
    size = resized(source)
    first, stop, top_left, canvas = vector([0, 0]), size, vector([0, 0]), size
    for place in PLACES:
        top_left = top_left + corner(place, canvas)
        canvas = vector(place["size"])
        # Where nothing is filled, every crop lies inside.
        first = top_left if FILL is None else math.max(first, top_left)
        stop = top_left + canvas if FILL is None else math.min(stop, top_left + canvas)
    return size, first, stop, top_left


def region(source: Any, size: Any, first: Any, stop: Any) -> tuple[Any, Any, Any, Any]:
    """The region to decode for a window, as anchor and shape, and the window's corners in it, which are not rounded.

    It has room for what the filter reads around the window, and for the decoder's interpolation of chroma.
    """
    # In units of a source pixel divided by the size, corners are integers.
    begin, end = first * source, stop * source
    margin = 2 * source // size + 4
    anchor = math.max(begin // size - margin, 0)
    shape = math.min(end // size + margin, source) - anchor
    offset = anchor * size
    return anchor, shape, (begin - offset) / size, (end - offset) / size


def graph() -> Any:
    """The graph from the input to the pixels."""
    encoded = fn.external_source(name="image", device="cpu", dtype=types.UINT8, ndim=1)
    peek = fn.peek_image_shape if DECODES_PARTS else fn.experimental.peek_image_shape
    source = peek(encoded, dtype=types.INT64, adjust_orientation=True)[:2]
    size, first, stop, top_left = window(source)
    anchor, shape, start, until = region(source, size, first, stop)
    encoded = within_limits(encoded, source, size)

    options: dict[str, Any] = {
        "device": "mixed" if ON_GPU else "cpu",
        "output_type": types.RGB,
        "adjust_orientation": True,
        "hw_decoder_load": HW_DECODER_LOAD,
        "jpeg_fancy_upsampling": True,
    }
    if DECODES_PARTS and not ON_GPU:
        part = [fn.cast(anchor, dtype=types.INT32), fn.cast(shape, dtype=types.INT32)]
        in_pixels: dict[str, Any] = {"normalized_anchor": False, "normalized_shape": False, "axes": [0, 1]}
        pixels = fn.decoders.image_slice(encoded, *part, **in_pixels, **options)
    else:
        # GPUs' decoders make mistakes in parts of a JPEG (github.com/NVIDIA/nvImageCodec/issues/55).
        decoders = fn.decoders if DECODES_PARTS else fn.experimental.decoders
        pixels = decoders.image(encoded, **options)
        anchor, start, until = vector([0, 0]), start + anchor, until + anchor
    if COLOR == "gray":
        pixels = fn.color_space_conversion(pixels, image_type=types.RGB, output_type=types.GRAY)
    if RESIZE is not None:
        pixels = fn.resize(
            pixels,
            size=fn.cast(stop - first, dtype=types.FLOAT),
            roi_start=start,
            roi_end=until,
            roi_relative=False,
            antialias=True,
            interp_type=types.INTERP_LINEAR,
        )
    else:
        pixels = fn.slice(
            pixels,
            start=fn.cast(first - anchor, dtype=types.INT32),
            shape=fn.cast(stop - first, dtype=types.INT32),
            axes=[0, 1],
        )
    if FILL is not None:
        pixels = fn.slice(
            pixels,
            start=fn.cast(top_left - first, dtype=types.INT32),
            shape=PLACES[-1]["size"],
            axes=[0, 1],
            out_of_bounds_policy="pad",
            fill_values=FILL,
        )
    if COLOR == "bgr":
        pixels = fn.color_space_conversion(pixels, image_type=types.RGB, output_type=types.BGR)
    return pixels


preprocess = autoserialize(
    pipeline_def(
        batch_size=MAX_BATCH_SIZE,
        num_threads=THREADS,
        device_id=0 if ON_GPU else None,
        prefetch_queue_depth=1,
        output_dtype=[types.UINT8],
        output_ndim=[3],
    )(graph)
)
