"""A pipeline's preprocessing as one file for Triton's DALI backend: ``pipeline`` with the settings filled in."""

from __future__ import annotations

from importlib import resources

from onestream.preprocess import CannotCompile, CenterCrop, Definition, Pad, Resize
from onestream.preprocess.backends.base import refuse_decoding, refuse_for_graph, refuse_regions
from onestream.serving.built.triton_config import header
from onestream.serving.pipeline import Pipeline

_BEGIN, _END = "# begin settings\n", "# end settings\n"


def pipeline_file(pipeline: Pipeline, *, source: str) -> str:
    """The text of a ``dali.py`` that preprocesses for ``pipeline`` up to its uint8 pixels, on a GPU or a CPU.

    ``source`` names the pipeline file in its header. Raises ``preprocess.CannotCompile`` naming what the graph cannot
    do exactly.
    """
    refuse_inexact(pipeline.preprocess)
    text = (resources.files("onestream.serving.building.dali_backend") / "pipeline.py").read_text(encoding="utf-8")
    beginning, _, rest = text.partition(_BEGIN)
    _, _, graph = rest.partition(_END)
    constants = "".join(f"{name} = {value!r}\n" for name, value in settings(pipeline).items())
    return header(source) + beginning + constants + graph


def refuse_inexact(definition: Definition) -> None:
    """Raise ``CannotCompile`` for what the graph cannot do exactly, or cannot refuse for a single image."""
    refuse_for_graph(definition)
    refuse_regions(definition, what="the unmodified container")
    refuse_decoding(definition, what="the unmodified container")
    for operation in definition.geometry:
        if (isinstance(operation, Resize) and operation.rounding not in ("truncate", "nearest")) or (
            isinstance(operation, CenterCrop) and operation.rounding == "truncate"
        ):
            raise CannotCompile(
                f"this form computes sizes in whole numbers, by torchvision's rules; it has no {operation.op} with "
                f"rounding {operation.rounding!r}"
            )
        if isinstance(operation, Resize) and (
            operation.mode in ("height", "area")
            or operation.max_size is not None
            or operation.multiple_of > 1
            or not (operation.enlarge and operation.shrink)
        ):
            raise CannotCompile(
                "this form has no resize with mode 'height' or 'area', max_size, multiple_of, enlarge false or shrink "
                "false"
            )
        if isinstance(operation, Pad) and any(operation.multiple_of):
            raise CannotCompile("this form has no pad with multiple_of")
    height, width = definition.output_spec.size_hw
    if height is None or width is None:
        raise CannotCompile("the size of the pixels depends on the image; end with center_crop, pad or an exact resize")
    largest: tuple[int, int] | None = None
    for operation in definition.geometry:
        if isinstance(operation, Pad) and (
            largest is None or largest[0] > operation.size[0] or largest[1] > operation.size[1]
        ):
            raise CannotCompile(
                f"pad to {list(operation.size)} may meet a larger image, which this form could not refuse alone; "
                "use letterbox, or center_crop before it"
            )
        largest = _largest(operation)


def _largest(operation: Resize | CenterCrop | Pad) -> tuple[int, int] | None:
    """The largest (height, width) that an operation can give; None where there is no bound."""
    if isinstance(operation.size, tuple):
        return operation.size
    return (operation.size, operation.size) if operation.size and operation.mode == "longer" else None


def settings(pipeline: Pipeline) -> dict[str, object]:
    """The constants at the head of the file, by name."""
    definition, gpu = pipeline.preprocess, pipeline.serving.gpu
    resize = definition.resize
    fill = definition.fills
    return {
        "COLOR": definition.color,
        "RESIZE": resize and resize.model_dump(mode="json", include={"mode", "size", "rounding"}),
        "PLACES": [
            operation.model_dump(mode="json", include={"op", "size", "align"})
            for operation in definition.geometry
            if not isinstance(operation, Resize)
        ],
        "FILL": fill[0] if fill else None,
        "MAX_BODY_BYTES": pipeline.limits.max_body_bytes,
        "MAX_PIXELS": pipeline.limits.max_pixels,
        "MAX_BATCH_SIZE": gpu.max_batch_size,
        "THREADS": gpu.decoder_threads,
        "GPU": gpu.decode != "cpu",
        "HW_DECODER_LOAD": 0.0 if gpu.decode == "hybrid" else gpu.hw_decoder_load,
    }
