"""The networks of pipelines without one: the answer is what the definition gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, parser

from onestream.preprocess import Definition
from onestream.preprocess.operations import Patches
from onestream.serving.errors import BadPipeline
from onestream.serving.pipeline import Pipeline

_OPSET, _IR_VERSION = 17, 8


def is_wanted(pipeline: Pipeline) -> bool:
    """Whether a pipeline has none."""
    return pipeline.network == "none" or isinstance(pipeline.network, Patches)


def check(pipeline: Pipeline, onnx_file: Path | None) -> None:
    """Raise ``BadPipeline`` where a pipeline without a network says something of one."""
    precision, on_gpu = pipeline.serving.precision, pipeline.serving.gpu.precision
    said = {
        f"--onnx {onnx_file}": onnx_file is not None,
        "network_inputs": bool(pipeline.network_inputs),
        "network_outputs": pipeline.network_outputs is not None,
        f"serving.precision {precision}": precision != "float32",
        f"serving.gpu.precision {on_gpu}": on_gpu not in ("auto", "fp32"),
    }
    found = [name for name, is_said in said.items() if is_said]
    if is_wanted(pipeline) and found:
        raise BadPipeline(f"{found[0]} is for a network, and the pipeline has network none; leave one of them out")


def of_pixels(definition: Definition) -> onnx.ModelProto:
    """Gives the definition's output, as ``pixel_values``."""
    spec = definition.output_spec
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    taken, given = (
        helper.make_tensor_value_info(name, dtype, ["batch", *spec.shape]) for name in ("pixels_taken", "pixel_values")
    )
    graph = helper.make_graph([helper.make_node("Identity", [taken.name], [given.name])], "none", [taken], [given])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)


def of_patches(definition: Definition, patches: Patches) -> onnx.ModelProto:
    """Gives the rows that ``Patches.rows`` states, as ``pixel_values``, and their grid as ``image_grid_thw``.

    The definition's output is uint8, NCHW.
    """
    channels, (height, width) = definition.output_spec.channels, definition.output_spec.size_hw
    row = ", ".join(map(str, patches.row_shape(channels)))
    down_across = "2, 5, 3, 6" if patches.order == "merged" else "2, 3, 5, 6"
    values, frame_axis = ("1, 4, 7", 6) if patches.layout == "CTHW" else ("4, 7, 1", 5)
    repeats = ", ".join(str(patches.temporal if axis == frame_axis else 1) for axis in range(9))
    return parser.parse_model(f"""
        <ir_version: {_IR_VERSION}, opset_import: ["" : {_OPSET}]>
        patches (uint8[batch, {channels}, {height or "height"}, {width or "width"}] planes)
            => (uint8[batch, rows, {row}] pixel_values, int64[batch, 3] image_grid_thw)
        {{
            one = Constant <value_ints = [1]> ()
            three = Constant <value_ints = [3]> ()
            patch = Constant <value_ints = [{patches.patch}]> ()
            merge = Constant <value_ints = [{patches.merge}]> ()
            unit = Constant <value_ints = [{patches.unit}]> ()
            shape = Shape (planes)
            count, channels, height, width = Split (shape)
            tokens_down = Div (height, unit)
            tokens_across = Div (width, unit)
            split_shape = Concat <axis = 0> (
                count, channels, tokens_down, merge, patch, tokens_across, merge, patch
            )
            split = Reshape (planes, split_shape)
            moved = Transpose <perm = [0, {down_across}, {values}]> (split)
            before_frames = Constant <value_ints = [{frame_axis}]> ()
            frame = Unsqueeze (moved, before_frames)
            times = Constant <value_ints = [{repeats}]> ()
            frames = Expand (frame, times)
            rows_shape = Constant <value_ints = [0, -1, {row}]> ()
            pixel_values = Reshape (frames, rows_shape)
            patches_down = Div (height, patch)
            patches_across = Div (width, patch)
            grid = Concat <axis = 0> (one, patches_down, patches_across)
            grids = Concat <axis = 0> (count, three)
            image_grid_thw = Expand (grid, grids)
        }}
    """)
