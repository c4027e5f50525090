"""NVIDIA DALI: decoding only the part of the image that the crop keeps, and on a GPU everything after it as well.

Geometry is computed in Python from the header and handed to the graph as numbers, so DALI's own size rules, which round
where torchvision truncates, are never used. On a GPU the whole definition is one graph; its triangle filter is within
one level of Pillow, except in the outermost pixel of an uncropped image, where Pillow renormalizes the filter and DALI
repeats the border.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from preprocess.backends.base import Compiled, Device, Sample
from preprocess.backends.finish import CpuFinish
from preprocess.definition import Definition, Resize
from preprocess.errors import BackendMissing, BadImage, CannotCompile
from preprocess.geometry import (
    Placement,
    Region,
    always_visible,
    fill_values,
    place,
    region,
    single_resize,
)
from preprocess.header import Encoded, Header
from preprocess.limits import Limits
from preprocess.rewrite import for_decoders

try:
    from nvidia.dali import Pipeline, fn, types
except ImportError as error:
    raise BackendMissing("the dali backend needs nvidia-dali: pip install 'onestream[cpu]'") from error


@dataclass(frozen=True, slots=True)
class GraphInputs:
    """Nodes that a source feeds to the graph, one value per sample.

    ``encoded``: uint8 bytes. ``anchor``, ``shape``: int32 (y, x) of the region to decode. ``start``, ``end``: float32
    (y, x) of the window inside that region. ``size``: float32 (height, width) of the window after the resize.
    ``offset``: int32 (y, x) of the canvas's corner relative to the window. What a definition does not need may be None.
    """

    encoded: Any
    anchor: Any
    shape: Any
    start: Any
    end: Any
    size: Any
    offset: Any


def decode_region(inputs: GraphInputs, *, device: Device) -> Any:
    """Node of the decoded region, RGB uint8 HWC, oriented and without alpha."""
    return fn.decoders.image_slice(
        inputs.encoded,
        inputs.anchor,
        inputs.shape,
        normalized_anchor=False,
        normalized_shape=False,
        axes=[0, 1],
        device="mixed" if device == "gpu" else "cpu",
        output_type=types.RGB,
        adjust_orientation=True,
    )


def build_graph(inputs: GraphInputs, definition: Definition, *, device: Device) -> Any:
    """Build the whole graph of ``definition`` from its input nodes and return its output node.

    The same function serves requests (fed by ``external_source``) and training loaders. On the CPU the decoded region
    is finished outside the graph (``finish.py``), which is faster and closer to Pillow.
    """
    sample = decode_region(inputs, device=device)
    if definition.decode.color == "gray":
        # Decoding to gray directly takes a JPEG's own luma, up to 12 levels from the luma of its RGB.
        sample = fn.color_space_conversion(sample, image_type=types.RGB, output_type=types.GRAY)
    canvas = definition.output_spec.size_hw
    fill = fill_values(definition)
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
    return _to_network(sample, definition)


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


def refuse_inexact(definition: Definition, *, device: Device) -> None:
    """Raise ``CannotCompile`` for what cannot be done exactly on a device."""
    geometry = definition.geometry
    for operation in geometry:
        if device == "gpu" and isinstance(operation, Resize) and operation.filter != "bilinear":
            raise CannotCompile(
                f"dali cannot resize with filter {operation.filter!r} exactly on a GPU; it supports 'bilinear' there "
                "(it keeps fractions between its two passes where Pillow rounds and clips)"
            )
    if not single_resize(geometry):
        raise CannotCompile("dali does one resize, before any crop or pad; this definition has another order")
    if device == "gpu" and not always_visible(geometry):
        raise CannotCompile("dali cannot do center_crop after pad or center_crop on a GPU: it may miss the image")
    fills = fill_values(definition)
    if len(fills) > 1:
        raise CannotCompile(f"dali fills with one value; this definition may fill with {fills}")


@dataclass(frozen=True, slots=True)
class _Checked:
    """An image whose header passed the limits, and what to do with it."""

    image: Encoded
    header: Header
    placement: Placement
    part: Region


class Dali(Compiled):
    """DALI on one device. On the CPU it decodes, and ``CpuFinish`` does the rest.

    A whole batch is decoded at once; only when that fails is each of its images run alone, so that a bad image is found
    and its batch-mates keep exactly their results.
    """

    def __init__(
        self, definition: Definition, limits: Limits, *, device: Device, max_batch_size: int, threads: int
    ) -> None:
        super().__init__(definition, limits)
        refuse_inexact(definition, device=device)
        self._max_batch_size = max_batch_size
        self._finish = CpuFinish(definition) if device == "cpu" else None
        self._inputs = dict(_DECODE_INPUTS) if device == "cpu" else graph_inputs(definition)
        # A depth of 1 keeps request and response together; the dynamic executor survives a failed batch.
        self._pipeline = Pipeline(
            batch_size=max_batch_size,
            num_threads=threads,
            device_id=0 if device == "gpu" else None,
            prefetch_queue_depth=1,
            exec_dynamic=True,
        )
        with self._pipeline:
            inputs = external_inputs(self._inputs)
            if device == "cpu":
                self._pipeline.set_outputs(decode_region(inputs, device=device))
            else:
                self._pipeline.set_outputs(build_graph(inputs, definition, device=device))
        self._pipeline.build()

    def run(self, images: Sequence[Encoded]) -> list[Sample | BadImage]:
        """See ``Compiled.run``."""
        results: list[Sample | BadImage | None] = [None] * len(images)
        checked: list[tuple[int, _Checked]] = []
        for index, image in enumerate(images):
            try:
                checked.append((index, self._check(image)))
            except BadImage as error:
                results[index] = error
        for first in range(0, len(checked), self._max_batch_size):
            indices, batch = zip(*checked[first : first + self._max_batch_size], strict=True)
            for index, result in zip(indices, self._run_isolated(batch), strict=True):
                results[index] = result
        return [result for result in results if result is not None]

    def close(self) -> None:
        """Release the pipeline."""
        del self._pipeline

    def _check(self, image: Encoded) -> _Checked:
        header = self.limits.check(image)
        placement = place(self.definition, header.oriented_hw)
        self.limits.check_resized(placement.resized_hw)
        return _Checked(image, header, placement, self._finish.region(placement) if self._finish else region(placement))

    def _run_isolated(self, batch: Sequence[_Checked]) -> list[Sample | BadImage]:
        try:
            return self._run_batch(batch)
        except RuntimeError as error:
            if "fn.decoders" not in str(error):
                raise
            if len(batch) > 1:
                return [result for item in batch for result in self._run_isolated([item])]
            return [
                BadImage("corrupt", f"the {batch[0].header.format} data is damaged or cut short and cannot be decoded")
            ]

    def _run_batch(self, batch: Sequence[_Checked]) -> list[Sample | BadImage]:
        columns: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in self._inputs}
        for item in batch:
            columns["encoded"].append(np.frombuffer(for_decoders(item.image, item.header), np.uint8))
            for name, value in graph_values(item.placement, item.part).items():
                if name in columns:
                    columns[name].append(value)
        (output,) = self._pipeline.run(**columns)
        if self._finish is None:
            on_host = output.as_cpu()
            return [np.array(on_host.at(index)) for index in range(len(batch))]
        # Not output.at(index), which copies.
        regions = [np.asarray(output[index]) for index in range(len(batch))]
        return [
            self._finish.finish(pixels, item.placement, item.part) for pixels, item in zip(regions, batch, strict=True)
        ]


_DECODE_INPUTS = {"encoded": types.UINT8, "anchor": types.INT32, "shape": types.INT32}


def graph_inputs(definition: Definition) -> dict[str, Any]:
    """Names and DALI types of the inputs that the whole graph reads; feeding another one is an error."""
    resizes = any(isinstance(operation, Resize) for operation in definition.geometry)
    used = {**_DECODE_INPUTS, "start": types.FLOAT}
    if resizes:
        used["end"] = types.FLOAT
    if not resizes or not _static_window(definition):
        used["size"] = types.FLOAT
    if fill_values(definition):
        used["offset"] = types.INT32
    return used


def graph_values(placement: Placement, part: Region) -> dict[str, npt.NDArray[Any]]:
    """What to feed for one image, beside its bytes; see ``GraphInputs``."""
    return {
        "anchor": np.array(part.anchor, np.int32),
        "shape": np.array(part.shape, np.int32),
        "start": np.array(part.start, np.float32),
        "end": np.array(part.end, np.float32),
        "size": np.array((placement.window.height, placement.window.width), np.float32),
        "offset": np.array((-placement.offset[0], -placement.offset[1]), np.int32),
    }


def external_inputs(used: dict[str, Any]) -> GraphInputs:
    """Input nodes that are fed by name with ``Pipeline.run``."""
    nodes = {name: fn.external_source(name=name, dtype=dtype, ndim=1) for name, dtype in used.items()}
    return GraphInputs(**{name: nodes.get(name) for name in GraphInputs.__slots__})


def _static_window(definition: Definition) -> bool:
    """Whether the kept window has the canvas's size for every image."""
    return not fill_values(definition) and None not in definition.output_spec.size_hw
