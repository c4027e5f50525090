"""Refuses a network whose outputs are not what its postprocessing reads: by its metadata, and by its own scores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import yaml

from onestream.postprocess.detector_family import DetectorFamily
from onestream.postprocess.kinds import AnyPostprocess
from onestream.postprocess.kinds.detection import Detector
from onestream.postprocess.network import no_probability, refuse_values
from onestream.preprocess import BadImage, CannotImport, Definition, compile
from onestream.preprocess.interop.ultralytics_metadata import Export, check_kind, detector_fields
from onestream.serving.engine.cpu import OnnxRuntimeEngine
from onestream.serving.errors import BadNetwork
from onestream.serving.graph.detector_layout import Columns, Layout
from onestream.serving.graph.example_sizes import example_sizes
from onestream.serving.graph.network_inputs import examples
from onestream.serving.photos import bundled_photos
from onestream.wire.tensor_names import PIXELS

_PHOTOS = 3
_Values = npt.NDArray[np.float64]
_Outputs = dict[str, npt.NDArray[Any]]


def check_task(model: onnx.ModelProto, postprocess: AnyPostprocess) -> None:
    """Raise ``BadNetwork`` where a file of ultralytics was exported for a task that the kind does not read."""
    try:
        check_kind(_export(model), postprocess.kind)
    except CannotImport as error:
        raise BadNetwork(str(error)) from None


def check_family(model: onnx.ModelProto, options: Detector, layout: Layout) -> None:
    """Raise ``BadNetwork`` where a file of ultralytics states another family than the layout's."""
    columns = layout.width(layout.boxes.outputs)
    dims = (columns, layout.anchors) if layout.turned else (layout.anchors, columns)
    export = _export(model, ((1, *dims),))
    if not export.is_ultralytics or len(model.graph.output) != 1:
        return
    try:
        fields = detector_fields(export)
    except CannotImport as error:
        raise BadNetwork(str(error)) from None
    if fields and _interpretation(DetectorFamily.model_validate(fields)) != _interpretation(options):
        said = yaml.safe_dump(fields, default_flow_style=True, sort_keys=False).strip()
        raise BadNetwork(
            f"its metadata and the sizes of its output say postprocess: {said}; the pipeline says family "
            f"{options.family}"
        )


def check_scores(served: onnx.ModelProto, layout: Layout, options: Detector, definition: Definition) -> int | None:
    """Run a detector, without its tail, on the package's photos and noise; returns the largest class of what it found.

    None where its outputs hold no class numbers, or it found nothing. Raises ``BadNetwork`` where scores are outside 0
    to 1, or classes are no whole numbers from 0 on.
    """
    if layout.apply is not None:
        # Made by an activation that the tail appends.
        return None
    found = [_found(outputs, layout, options.score_threshold) for outputs in runs(served, definition)]
    scores, classes = (np.concatenate(parts) for parts in zip(*found, strict=True))
    reader = f"family {options.family}"
    refuse_values(scores, no_probability(scores), "scores are outside 0 to 1", reader)
    refuse_values(classes, (classes < 0) | (classes != np.rint(classes)), "classes are no whole numbers", reader)
    return int(classes.max()) if classes.size else None


def runs(served: onnx.ModelProto, definition: Definition) -> Iterator[_Outputs]:
    """What a network gives for noise and for the package's photos, of which each comes as it is asked for."""
    engine = OnnxRuntimeEngine(served.SerializeToString(), threads=0)
    for pixels in _pictures(definition):
        yield engine.run({PIXELS: pixels[None]} | examples(served, 1))


def _export(model: onnx.ModelProto, outputs: tuple[tuple[int | None, ...], ...] = ()) -> Export:
    return Export({entry.key: entry.value for entry in model.metadata_props}, (), None, outputs)


def _interpretation(options: DetectorFamily) -> tuple[str, str, bool]:
    return options.family, options.box_format, bool(options.normalized)


def _pictures(definition: Definition) -> Iterator[npt.NDArray[np.uint8]]:
    """Noise, and the package's photos as they come to the network; of regions only noise."""
    shape = (*example_sizes(definition)[0], definition.output_spec.channels)
    yield np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    if definition.region is None:
        taken = compile(definition.pixels()).run(list(bundled_photos().values())[:_PHOTOS])
        yield from (pixels for pixels in taken if not isinstance(pixels, BadImage))


def _found(outputs: _Outputs, layout: Layout, threshold: float) -> tuple[_Values, _Values]:
    """The finite scores of a picture, and the classes of what has a score above the threshold."""
    scores = _columns(outputs, layout, layout.scores)
    if layout.objectness is not None:
        scores = scores * _columns(outputs, layout, layout.objectness)
    if layout.class_ids is None:
        return scores[np.isfinite(scores)], np.empty(0)
    # Rows in which nothing was found may hold anything.
    known = np.isfinite(scores[:, 0]) & (scores[:, 0] > threshold)
    if layout.count_output is not None:
        known &= np.arange(len(known)) < outputs[layout.count_output].ravel()[0]
    return scores[known, 0], _columns(outputs, layout, layout.class_ids)[known, 0]


def _columns(outputs: _Outputs, layout: Layout, part: Columns) -> _Values:
    """(anchors, columns) of the outputs of one picture."""
    arrays = [np.asarray(outputs[name][0], np.float64) for name in part.outputs]
    rows = [array.T if layout.turned else array.reshape(len(array), -1) for array in arrays]
    return np.concatenate(rows)[:, part.start : part.stop]
