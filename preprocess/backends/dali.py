"""NVIDIA DALI: on a CPU it decodes only the part of the image that the crop keeps, on a GPU it does all of the work.

Geometry is computed in Python from the header and handed to the graph as numbers, so DALI's own size rules, which round
where torchvision truncates, are never used. On a GPU the whole definition is one graph; its triangle filter is within
one level of Pillow, except in the outermost pixel of an uncropped image, where Pillow renormalizes the filter and DALI
repeats the border.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from onestream.preprocess.backends.base import (
    CompiledForGpu,
    DecodeOptions,
    Device,
    Sample,
    refuse_inexact,
    refuse_reduced,
)
from onestream.preprocess.backends.batches import (
    DECODED_PIXELS_AT_ONCE,
    DECODED_PIXELS_AT_ONCE_ON_CPU,
    Planned,
    groups,
    plan_batch,
)
from onestream.preprocess.backends.dali_graph import (
    DECODE_INPUTS,
    DECODE_WHOLE_INPUTS,
    VARIED_INPUTS,
    build_graph,
    build_varied_graph,
    decode_part,
    external_inputs,
    graph_inputs,
    graph_values,
    new_pipeline,
    varied_values,
)
from onestream.preprocess.backends.finish import CpuFinish
from onestream.preprocess.backends.reference import decode as decode_as_reference
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage
from onestream.preprocess.headers.reader import Encoded, for_decoders
from onestream.preprocess.limits import Limits, undecodable
from onestream.preprocess.moves import CenterCrop
from onestream.preprocess.operations import Decode
from onestream.preprocess.plan import Plan
from onestream.preprocess.variation import Vary


class Dali(CompiledForGpu):
    """DALI on one device. On the CPU it decodes, and ``CpuFinish`` does the rest. ``gpu_index`` is the GPU's number.

    A whole batch is decoded at once; only when that fails is each of its images run alone, so that a bad image is found
    and its batch-mates keep exactly their results.
    """

    def __init__(
        self,
        definition: Definition,
        limits: Limits,
        *,
        device: Device,
        max_batch_size: int,
        threads: int,
        varied: bool = False,
        decode: DecodeOptions | None = None,
        gpu_index: int = 0,
    ) -> None:
        super().__init__(definition, limits)
        if device == "gpu":
            refuse_reduced(definition, what="dali on a GPU")
        if not varied:
            refuse_inexact(definition, backend="dali", own_filter=device == "gpu")
        self._max_batch_size, self._varied = max_batch_size, varied
        self._finish = CpuFinish(definition) if device == "cpu" else None
        self._pool = ThreadPoolExecutor(threads) if definition.scales_dct and threads > 1 else None
        if device == "cpu":
            # A tenth of a small picture's time goes to feeding the part, which is the whole where nothing is cut.
            cuts = varied or any(isinstance(operation, CenterCrop) for operation in definition.geometry)
            self._inputs = dict(DECODE_INPUTS if cuts else DECODE_WHOLE_INPUTS)
        else:
            self._inputs = dict(VARIED_INPUTS) if varied else graph_inputs(definition)
        self._pipeline = new_pipeline(
            device=device, max_batch_size=max_batch_size, threads=threads, gpu_index=gpu_index
        )
        with self._pipeline:
            inputs = external_inputs(self._inputs)
            if device == "cpu":
                self._pipeline.set_outputs(decode_part(inputs, device=device))
            else:
                build = build_varied_graph if varied else build_graph
                self._pipeline.set_outputs(build(inputs, definition, device=device, decode=decode))
        self._pipeline.build()

    def run(self, images: Sequence[Encoded], varies: Sequence[Vary] | None = None) -> list[Sample | BadImage]:
        """See ``Compiled.run``."""
        planned, bad = self._plan_all(images, varies)
        results: list[Sample | BadImage | None] = [bad.get(index) for index in range(len(images))]
        reduced = [item for item in planned if item.plan.factor > 1]
        planned = [item for item in planned if item.plan.factor == 1]
        found = (self._pool.map if self._pool else map)(self._run_reduced, reduced)
        for item, result in zip(reduced, found, strict=True):
            results[item.index] = result
        at_once = DECODED_PIXELS_AT_ONCE if self._finish is None else DECODED_PIXELS_AT_ONCE_ON_CPU
        for batch in groups(planned, max_items=self._max_batch_size, max_pixels=at_once):
            for item, result in zip(batch, self._run_isolated(batch), strict=True):
                results[item.index] = result
        return [result for result in results if result is not None]

    def run_on_device(
        self, images: Sequence[Encoded], varies: Sequence[Vary] | None = None
    ) -> tuple[Any, dict[int, BadImage]]:
        """See ``CompiledForGpu.run_on_device``; a tensor of DALI's."""
        planned, bad = self._plan_all(images, varies)
        while planned:
            try:
                return self._outputs(planned).as_tensor(), bad
            except RuntimeError as error:
                if "fn.decoders" not in str(error):
                    raise
                # Which one it was shows only when each is run alone.
                damaged = {item.index: one for item in planned for one in self._run_isolated([item]) if _is_bad(one)}
                if not damaged:
                    raise
                bad.update(damaged)
                planned = [item for item in planned if item.index not in damaged]
        return None, bad

    def close(self) -> None:
        """Release the pipeline."""
        if self._pool is not None:
            self._pool.shutdown()
        del self._pipeline

    def _plan_all(
        self, images: Sequence[Encoded], varies: Sequence[Vary] | None
    ) -> tuple[list[Planned], dict[int, BadImage]]:
        if (varies is not None) != self._varied:
            raise ValueError("variations need compile(varied=True), which needs variations")
        return plan_batch(images, self._planner, self.limits, varies)

    def _run_reduced(self, item: Planned) -> Sample | BadImage:
        """Of a JPEG that is decoded at a fraction of its size: by Pillow, which lets other threads run meanwhile."""
        source = self.definition.source
        assert self._finish is not None
        assert isinstance(source, Decode)
        try:
            image = decode_as_reference(
                item.image, item.header, source.model_copy(update={"color": "rgb"}), factor=item.plan.factor
            )
            return self._finish.finish(np.array(image), item.plan)
        except BadImage as error:
            return error.as_result()
        except MemoryError as error:
            return undecodable(item.header, "", error)

    def _run_isolated(self, batch: Sequence[Planned]) -> list[Sample | BadImage]:
        try:
            return self._run_batch(batch)
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, RuntimeError) and "fn.decoders" not in str(error):
                raise
            if len(batch) > 1:
                return [result for item in batch for result in self._run_isolated([item])]
            header = batch[0].header
            return [
                undecodable(header, f"the {header.format} data is damaged or cut short and cannot be decoded", error)
            ]

    def _run_batch(self, batch: Sequence[Planned]) -> list[Sample | BadImage]:
        output = self._outputs(batch)
        if self._finish is None:
            on_host = output.as_cpu()
            return [np.array(on_host.at(index)) for index in range(len(batch))]
        # Not output.at(index), which copies.
        parts = [np.asarray(output[index]) for index in range(len(batch))]
        return [self._finish.finish(pixels, item.plan) for pixels, item in zip(parts, batch, strict=True)]

    def _outputs(self, batch: Sequence[Planned]) -> Any:
        columns: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in self._inputs}
        for item in batch:
            columns["encoded"].append(np.frombuffer(for_decoders(item.image, item.header), np.uint8))
            for name, value in self._values(item.plan).items():
                if name in columns:
                    columns[name].append(value)
        (output,) = self._pipeline.run(**columns)
        return output

    def _values(self, plan: Plan) -> dict[str, npt.NDArray[Any]]:
        if self._finish is not None:
            return plan.part_values
        if plan.variation is None:
            return graph_values(plan)
        return varied_values(plan.variation, self.definition.output_spec.channels)


def _is_bad(result: Sample | BadImage) -> TypeGuard[BadImage]:
    return isinstance(result, BadImage)
