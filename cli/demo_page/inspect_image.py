"""Gathers everything that the page shows about one image, as values ready for JSON."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from onestream.cli.demo_page.compose import composed
from onestream.cli.demo_page.served import Answer, Form, Served
from onestream.client import Result, Tensors, kinds
from onestream.client.kinds.base import Line
from onestream.measure.parity import heatmap
from onestream.measure.parity.library_baselines import usual_code
from onestream.measure.parity.photos import source_of
from onestream.measure.parity.subject import Photo, Refused, Subject
from onestream.preprocess import BackendMissing, BadImage, CannotVary, Definition, PreprocessError, compile
from onestream.preprocess import Region as RegionSource
from onestream.preprocess.backends.reference import picture
from onestream.wire.box_style import color_of
from onestream.wire.comparing import compare

if TYPE_CHECKING:
    from onestream.preprocess.training import Augmentation
    from onestream.preprocess.training.sheet import Sheet

Json = dict[str, Any]
Pixels = npt.NDArray[np.uint8]

_JPEG_QUALITY = 90
_EPOCHS, _LINES = 5, 4
_LEGEND_WIDTH, _LEGEND_LEVELS = 256, (0, 1, 4, 8, 16, 32)
_USUAL = {"OpenCV": "cv2.resize: no antialiasing", "Pillow": "Image.resize with its default filter"}
_STEPS = {
    "_preprocess": ("preprocess", "decode, resize, crop"),
    "_model": ("network", "normalize, network"),
    "_postprocess": ("postprocess", "outputs to answer"),
}
_IN_ONE = ("all steps", "in one process")
_CORNERS = {
    "box": "left, top, right, bottom",
    "quad": "x,y of each corner, clockwise from the top left of what is in it",
}
_STAGES = ("all stages", "from the picture to what they say of its regions")


def look(served: Served, form: Form, image: bytes, chain: Augmentation | str) -> Json:
    """Ask the server about one image, compare what it did with the reference, and vary it as training would.

    ``chain`` is how training varies pictures, or says why that cannot be shown. Raises the errors of
    ``onestream.client.errors``: ``BadImage`` for an image that the server refuses.
    """
    answer = served.answer(form, image)
    seen = served.pixels(form, image)
    reference = _reference(form, image)
    return {
        "form": form.name,
        "seen": _seen(form, seen, reference),
        "answer": _answer(form, image, answer),
        "time": _time(form, answer),
        "training": _training(form, image, answer, chain),
        "parity": _parity(served, form, image, answer, seen, reference),
    }


def legend() -> Json:
    """The colours of the heat maps, from no difference to the brightest."""
    most = heatmap.BRIGHTEST_LEVEL
    # Along the square root, as the colours are, so that they change evenly.
    levels = most * np.linspace(0, 1, _LEGEND_WIDTH)[None] ** 2
    ticks = [{"level": level, "at": (level / most) ** 0.5} for level in _LEGEND_LEVELS]
    return {"image": _png(heatmap.paint(levels)), "ticks": ticks}


def describe(definition: Definition) -> list[str]:
    """The operations of a definition in words, one line each, defaults left out."""
    lines = []
    for operation in definition.operations:
        fields = operation.model_dump(exclude_defaults=True, exclude={"op"})
        words = ", ".join(f"{name} {_plain(value)}" for name, value in fields.items())
        lines.append(f"{operation.op}: {words}" if words else operation.op)
    return lines


def _operations(form: Form) -> list[str]:
    """What is done before the network, or of a cascade before each stage's."""
    if not form.stages:
        return describe(form.definition)
    return [f"{name}: {line}" for name, definition in form.stages.items() for line in describe(definition)]


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_plain, value)) if len(set(value)) > 1 else _plain(value[0])
    return f"{value:g}" if isinstance(value, float) else str(value)


def _reference(form: Form, image: bytes) -> Pixels | BadImage:
    """The reference's pixels; a ``BadImage`` where it refuses what the server took."""
    (pixels,) = compile(form.definition.pixels(), limits=form.limits).run([image])
    return pixels if isinstance(pixels, BadImage) else pixels.astype(np.uint8, copy=False)


def _seen(form: Form, seen: Pixels | None, reference: Pixels | BadImage) -> Json:
    """The picture that the network was fed, and who showed it."""
    found: Json = {"image": None, "operations": _operations(form)}
    if seen is not None:
        pixels, source = seen, f"the output of {form.preprocess_model} on the server"
    elif isinstance(reference, BadImage):
        return {**found, "source": f"not shown: the server has no model for it, and the reference says: {reference}"}
    else:
        pixels, source = reference, "made here by the reference: the server has no model that shows it"
        if form.stages:
            source = f"what the first network saw, that of {next(iter(form.stages))}; {source}"
    height, width, _channels = pixels.shape
    return {**found, "image": _shown(form, pixels), "width": width, "height": height, "source": source}


def _answer(form: Form, image: bytes, answer: Answer) -> Json:
    result = _result(form, answer.outputs)
    if (matte := result.levels) is not None:
        found: Json = {"kind": "matte", "matte": _png(matte), "person": float((matte >= 128).mean())}
        try:
            return {**found, "composed": _jpeg(composed(form, image, matte))}
        except ValueError as error:
            return {**found, "composed": None, "why": str(error)}
    if result.places is not None:
        return _objects(result)
    lines = result.summary() or [Line(result.nothing)]
    if result.is_short:
        return {"kind": "classes", "labels": [{"label": one.what, "score": one.score} for one in lines]}
    return {"kind": "raw", "outputs": [f"{line.what}: {line.where}" for line in lines]}


def _objects(result: Result) -> Json:
    """Objects, regions or lines of text: corners for the picture, words for the list, and words about it."""
    assert result.drawn_size is not None
    height, width = result.drawn_size
    said = f" {result.note}." if result.note else ""
    return {
        "kind": "objects",
        "objects": [
            {
                "label": one.label,
                "what": line.what,
                "where": line.where,
                "score": one.score,
                "quad": one.quad,
                "color": f"rgb{color_of(one.class_id)}",
            }
            for one, line in zip(result.places or (), result.summary(), strict=True)
        ],
        "width": width,
        "height": height,
        "nothing": result.nothing_found,
        "note": f"In the picture's pixels: {_CORNERS[result.titles[1]]}.{said}",
    }


def _result(form: Form, outputs: Tensors) -> Result:
    return kinds.read(form.kind, form.name, outputs, request_id="", latency_ms=0.0)


def _time(form: Form, answer: Answer) -> Json:
    """Where the milliseconds of one request went; the parts sum up to what this process saw.

    Of what Triton counts for a step only its queue and its model's own time are taken: a step hands out its outputs
    while the next one begins.
    """
    spent = answer.spent
    parts: list[Json] = []
    for step in spent.steps or (spent,):
        name, what = (
            _STAGES
            if form.stages
            else next((words for suffix, words in _STEPS.items() if step.model.endswith(suffix)), _IN_ONE)
        )
        parts.append({"name": name, "what": what, "ms": step.compute_infer_ms})
    waited_ms = sum(step.queue_ms for step in spent.steps or (spent,))
    parts.append({"name": "queue", "what": "before the steps", "ms": waited_ms})
    rest_ms = answer.latency_ms - sum(part["ms"] for part in parts)
    parts.append({"name": "transfer", "what": "gRPC, and between the steps", "ms": rest_ms})
    return {"total_ms": answer.latency_ms, "parts": parts, "requests": spent.success.count, "precision": form.precision}


def _training(form: Form, image: bytes, answer: Answer, chain: Augmentation | str) -> Json:
    """The picture as served and as epochs of training would see it, with the objects that were found.

    Of a cascade that reads they are the first lines that it read, of another one it is for its first network.
    """
    nothing: Json = {"image": None, "variations": []}
    if isinstance(chain, str):
        return {**nothing, "why": chain}
    from onestream.preprocess.training.sheet import Subject, contact_sheet

    result, subject = _result(form, answer.outputs), Subject("this picture", image)
    if objects := result.to_coco(0):
        x, y, width, height = np.array([one["bbox"] for one in objects], np.float32).T
        boxes = np.stack([x, y, x + width, y + height], axis=1)
        subject = replace(subject, boxes=boxes, class_ids=np.array([one["category_id"] for one in objects], np.int64))
    try:
        if result.prints_texts and result.places:
            sheet = _lines_of(form, image, result, chain)
        else:
            sheet = contact_sheet(form.definition, chain, [subject], epochs=_EPOCHS, limits=form.limits)
    except CannotVary as error:
        return {**nothing, "why": f"Not shown: {error}. Start the page with another --augmentation."}
    except PreprocessError as error:
        return {**nothing, "why": f"Not shown: {error}"}
    return {"image": _png(np.asarray(sheet.image)), "variations": [str(one) for row in sheet.drawn for one in row]}


def _lines_of(form: Form, image: bytes, read: Result, chain: Augmentation) -> Sheet:
    """The sheet of the first lines that were read, by the stage that reads."""
    from onestream.preprocess.training.sheet import line_sheet
    from onestream.preprocess.training.text.files import TextLine

    definition = [one for one in form.stages.values() if isinstance(one.source, RegionSource)][-1]
    with NamedTemporaryFile() as file:
        file.write(image)
        file.flush()
        size = read.drawn_size or (0, 0)
        lines = [
            TextLine(Path(file.name), f"line {number}", size, np.array(line.quad, np.float32), line.label)
            for number, line in enumerate(read.places or (), start=1)
        ]
        return line_sheet(definition, chain, lines[:_LINES], epochs=_EPOCHS, limits=form.limits)


def _parity(
    served: Served, form: Form, image: bytes, answer: Answer, seen: Pixels | None, reference: Pixels | BadImage
) -> Json:
    """The server's pixels and those of usual code against the reference's, and what the network makes of each."""
    if isinstance(reference, BadImage):
        return {"why": f"the reference refuses this image: {reference}", "rows": []}
    expected = served.answer_to_pixels(form, reference, image)
    rows = []
    if seen is not None:
        name = f"the server: {form.preprocess_model}"
        rows.append({"name": name, **_difference(seen, reference), **_compared(form, answer.outputs, expected)})
    photo = Photo("image", image, source_of(image))
    for subject in _usual(form.definition):
        name = f"{subject.name}: {_USUAL[subject.name]}"
        try:
            pixels = subject.observe(photo).network_pixels
        except Refused as error:
            rows.append({"name": name, "why": str(error)})
            continue
        if pixels is None or pixels.shape != reference.shape:
            rows.append({"name": name, "why": "gives a picture of another size"})
            continue
        outputs = served.answer_to_pixels(form, pixels, image)
        rows.append({"name": name, **_difference(pixels, reference), **_compared(form, outputs, expected)})
    return {"reference": {"image": _shown(form, reference), **_compared(form, expected, expected)}, "rows": rows}


def _usual(definition: Definition) -> list[Subject[Photo]]:
    """Other people's usual code, for the libraries installed. The reference equals torchvision, which is left out."""
    found: list[Subject[Photo]] = []
    for library in ("opencv", "pillow"):
        try:
            found += usual_code(library, definition)
        except BackendMissing:
            continue
    return found


def _difference(pixels: Pixels, reference: Pixels) -> Json:
    difference = np.abs(pixels.astype(np.int16) - reference)
    return {
        "heat": _png(heatmap.paint(difference.max(axis=2))),
        "max": int(difference.max()),
        "mean": float(difference.mean()),
        "equal": float((difference == 0).mean()),
    }


def _compared(form: Form, outputs: Tensors | None, expected: Tensors | None) -> Json:
    """An answer in words, beside that to the reference's pixels; ``same``: its best class or its objects."""
    if outputs is None or expected is None:
        return {"answer": "", "same": None}
    found = compare(form.kind, expected, outputs)
    if not (found.row.is_found or found.row.said):
        return {"answer": _apart(outputs, expected), "same": None}
    is_same = len(found.same) == found.of
    if not found.row.is_found:
        return {"answer": f"{found.other.labels[0]} {found.other.scores[0]:.3f}", "same": is_same}
    one, many = found.row.nouns
    text = f"{len(found.same)} of {len(found.one)} {one if len(found.one) == 1 else many}"
    return {"answer": f"{text} and {len(found.added)} other" if found.added else text, "same": is_same}


def _apart(outputs: Tensors, expected: Tensors) -> str:
    """How far the values of outputs are from those for the reference's pixels."""
    names = [name for name in sorted(expected) if name in outputs and expected[name].dtype.kind in "biufc"]
    reshaped = [name for name in names if outputs[name].shape != expected[name].shape]
    alike = [name for name in names if name not in reshaped and expected[name].size]
    texts = [f"{', '.join(reshaped)}: outputs of another shape"] if reshaped else []
    if alike and outputs is not expected:
        apart = np.concatenate(
            [np.abs(np.subtract(outputs[name], expected[name], dtype=np.float64)).ravel() for name in alike]
        )
        texts.insert(0, f"{', '.join(alike)}: at most {apart.max():.3g} apart, mean {apart.mean():.2g}")
    return "; ".join(texts)


def _shown(form: Form, pixels: Pixels) -> str:
    """The network's pixels as they look, whatever the order of its channels."""
    return _png(np.asarray(picture(pixels, form.definition.color)))


def _png(pixels: Pixels) -> str:
    return _data_url(pixels, "PNG", {"compress_level": 3})


def _jpeg(pixels: Pixels) -> str:
    return _data_url(pixels, "JPEG", {"quality": _JPEG_QUALITY})


def _data_url(pixels: Pixels, kind: str, options: Mapping[str, int]) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
