"""From a network's outputs to what a pipeline returns, for every kind of postprocessing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from onestream.postprocess.classification import top_k
from onestream.postprocess.detection.detect import detect
from onestream.postprocess.embedding import embeddings
from onestream.postprocess.labels import read_labels
from onestream.postprocess.matte.composer import alpha
from onestream.postprocess.options import (
    AnyPostprocess,
    Classification,
    Detection,
    Embedding,
    Matte,
    Raw,
    Rotation,
    Segmentation,
    Text,
    TextLines,
)
from onestream.postprocess.parameters import NO_PARAMETERS, Parameters
from onestream.postprocess.segmentation import Place, class_grid, level_grids, png, probabilities
from onestream.postprocess.text.rotation import rotations
from onestream.preprocess import Definition
from onestream.preprocess.geometry import Boxes, Size, mapping
from onestream.wire.tensor_names import (
    BOXES,
    CANDIDATES,
    CHARACTER_SCORES,
    CLASS_IDS,
    CTC,
    DEGREES,
    EMBEDDING,
    IMAGE_SIZE,
    LABELS,
    LEFT_OUT,
    MASKS,
    MATTE,
    QUADS,
    SCORES,
    TEXTS,
)

Tensors = dict[str, npt.NDArray[Any]]
Scores = npt.NDArray[np.float32]
Classes = npt.NDArray[np.int32]
Names = Callable[[npt.NDArray[np.int32]], npt.NDArray[np.object_]]


class Postprocess(Protocol):
    """From a network's outputs for a batch to what is returned for each picture."""

    def __call__(
        self, outputs: Tensors, sizes: Sequence[Size], parameters: Sequence[Parameters] = (), /
    ) -> list[Tensors]:
        """What is returned for each picture, with a leading dimension of 1.

        ``outputs`` have a leading batch dimension, ``sizes`` are (height, width) of each upright picture in pixels. A
        kind whose options say ``takes_image_size = False`` does not read them, so they may be empty. ``parameters`` are
        those of each picture's request, within the bounds of the options' ``request_parameters``; none where empty.
        """


def open_postprocess(
    options: AnyPostprocess,
    definition: Definition,
    *,
    labels: Sequence[str] | None = None,
    has_tail: bool = False,
    dropped: Callable[[int], None] = lambda _count: None,
    full: Callable[[], None] = lambda: None,
) -> Postprocess:
    """The function that a pipeline's options ask for.

    ``labels`` are the names of the network's classes; ids serve as names where there are none. Those of a text are the
    characters of its classes from 1 on. ``has_tail`` says that
    the network ends in the tail that ``onestream.serving.graph.onnx_postprocess`` writes. ``dropped`` is called with
    how many of a batch's values nobody can use, since they are not finite or of no known class: candidates of a
    detector, cells of a map of text, rows of angles, steps of a text. ``full`` is called for each picture whose
    candidates above the threshold filled the detector's ``max_candidates``. What finds regions says in ``left_out`` how
    many were beyond ``max_detections`` or ``max_lines``.
    """
    match options:
        case Raw():
            return lambda outputs, _sizes, _parameters=(): rows(outputs)
        case Matte():
            return lambda outputs, _sizes, _parameters=(): rows(outputs if has_tail else _matte(outputs, options))
        case Classification():
            return _classifier(options, labels, has_tail=has_tail)
        case Embedding():
            return lambda outputs, _sizes, _parameters=(): rows(outputs if has_tail else _embedding(outputs, options))
        case Detection():
            return _detector(options, definition, labels, dropped, full)
        case Segmentation():
            return _segmenter(options, definition, labels)
        case TextLines():
            return _line_finder(options, definition, dropped)
        case Rotation():
            return lambda outputs, _sizes, _parameters=(): rows(_rotation(outputs, options, dropped))
        case Text():
            return _reader(options, labels, dropped)


def without_stages(
    options: AnyPostprocess, postprocess: Postprocess, left_out: Callable[[int], None] = lambda _count: None
) -> Postprocess:
    """The postprocessing of a pipeline that is no cascade's stage: ``left_out`` stands in the answers that say it only.

    The function ``left_out`` is called with that of each picture in which any was.
    """
    if not options.finds_regions:
        return postprocess

    def alone(outputs: Tensors, sizes: Sequence[Size], parameters: Sequence[Parameters] = ()) -> list[Tensors]:
        answers = postprocess(outputs, sizes, parameters)
        for answer in answers:
            if count := int(answer[LEFT_OUT][0, 0]):
                left_out(count)
            if not options.says_left_out:
                del answer[LEFT_OUT]
        return answers

    return alone


def labels_beside(options: AnyPostprocess, folder: Path) -> list[str] | None:
    """The labels that lie in a served model's folder; None where none do. Raises ``ValueError`` as ``read_labels``."""
    path = folder / "labels.txt"
    return read_labels(path, spaces=isinstance(options, Text)) if path.exists() else None


def rows(tensors: Tensors) -> list[Tensors]:
    """Batched tensors cut up: one entry for each row, with a leading dimension of 1."""
    count = len(next(iter(tensors.values())))
    return [{name: value[row : row + 1] for name, value in tensors.items()} for row in range(count)]


def _matte(outputs: Tensors, options: Matte) -> Tensors:
    (person,) = outputs.values()
    return {MATTE: alpha(person, softness=options.softness)}


def _embedding(outputs: Tensors, options: Embedding) -> Tensors:
    (features,) = outputs.values()
    return {EMBEDDING: embeddings(features, normalize=options.normalize)}


def _classifier(options: Classification, labels: Sequence[str] | None, *, has_tail: bool) -> Postprocess:
    names = _names(labels)

    def classes(outputs: Tensors, _sizes: Sequence[Size], parameters: Sequence[Parameters] = ()) -> list[Tensors]:
        found = rows(_classes(outputs, options, names, has_tail=has_tail))
        if not any(parameters):
            return found
        most = [int(one.get("top_k", options.top_k)) for one in parameters]
        return [{name: value[:, :k] for name, value in one.items()} for one, k in zip(found, most, strict=True)]

    return classes


def _classes(outputs: Tensors, options: Classification, names: Names, *, has_tail: bool) -> Tensors:
    if has_tail:
        scores, class_ids = outputs[SCORES], outputs[CLASS_IDS]
    else:
        assert options.activation != "auto", "the build writes which one it is"
        (logits,) = outputs.values()
        scores, class_ids = top_k(logits, options.top_k, activation=options.activation)
    return {SCORES: scores, CLASS_IDS: class_ids, LABELS: names(class_ids)}


def _rotation(outputs: Tensors, options: Rotation, dropped: Callable[[int], None]) -> Tensors:
    assert options.activation != "auto", "the build writes which one it is"
    (logits,) = outputs.values()
    _count(~np.isfinite(logits).all(axis=1), dropped)
    degrees, scores = rotations(logits, options.degrees, min_score=options.min_score, activation=options.activation)
    return {DEGREES: degrees, SCORES: scores}


def _count(bad: npt.NDArray[np.bool_], dropped: Callable[[int], None]) -> None:
    if count := int(np.count_nonzero(bad)):
        dropped(count)


def _names(labels: Sequence[str] | None) -> Names:
    """The function from classes to their names, as bytes."""
    if labels is None:
        return lambda classes: classes.astype(str).astype("S").astype(object)
    known = np.array([label.encode() for label in labels], object)
    return lambda classes: known[classes]


def _detector(
    options: Detection,
    definition: Definition,
    labels: Sequence[str] | None,
    dropped: Callable[[int], None],
    full: Callable[[], None],
) -> Postprocess:
    names, id_of = _names(labels), options.id_of_class
    known = labels if id_of is None else id_of
    ids = None if id_of is None else np.array(id_of, np.int32)
    # Pictures come in few sizes.
    mapping_of = lru_cache(maxsize=256)(partial(mapping, definition))
    bounds: dict[str, Any] = {
        "score_threshold": options.score_threshold,
        "iou_threshold": None if options.suppresses == "none" else options.iou_threshold,
        "max_detections": options.max_detections,
    }
    find = partial(
        detect,
        class_aware=options.suppresses == "by_class",
        classes_known=None if known is None else len(known),
    )

    def found_in(boxes: Boxes, scores: Scores, classes: Classes, size_hw: Size, parameters: Parameters) -> Tensors:
        found = find(boxes, scores, classes, mapping_of(size_hw), **{**bounds, **parameters})
        if found.dropped:
            dropped(found.dropped)
        # Fewer candidates are all that the network has.
        if found.is_full and len(scores) >= options.max_candidates:
            full()
        classes = found.classes
        class_ids = classes if ids is None else ids[classes]
        return {
            BOXES: found.boxes[None],
            SCORES: found.scores[None],
            CLASS_IDS: class_ids[None],
            LABELS: names(class_ids if labels is None else classes)[None],
            IMAGE_SIZE: np.array([size_hw], np.int32),
            LEFT_OUT: np.array([[found.left_out]], np.int32),
        }

    def found_in_each(outputs: Tensors, sizes: Sequence[Size], parameters: Sequence[Parameters] = ()) -> list[Tensors]:
        batches = (outputs[name] for name in CANDIDATES)
        own = parameters or [NO_PARAMETERS] * len(sizes)
        return [found_in(*one) for one in zip(*batches, sizes, own, strict=True)]

    return found_in_each


def _segmenter(options: Segmentation, definition: Definition, labels: Sequence[str] | None) -> Postprocess:
    names, activation = _names(labels), options.activation
    assert activation != "auto", "the build writes which one it is"

    def masks(scores: npt.NDArray[Any], size_hw: Size) -> Tensors:
        # A network of one class may leave that dimension out.
        scores = scores.reshape(-1, *scores.shape[-2:])
        place = Place(definition, size_hw, (scores.shape[1], scores.shape[2]))
        if options.output == "classes":
            class_ids = np.arange(max(2, len(scores)), dtype=np.int32)
            files = [png(place.classes(class_grid(scores, activation=activation)))]
        else:
            class_ids = np.array(options.classes or range(len(scores)), np.int32)
            chosen = probabilities(scores, activation=activation)[class_ids]
            files = [png(place.levels(grid)) for grid in level_grids(chosen)]
        return {
            MASKS: np.array([files], object),
            CLASS_IDS: class_ids[None],
            LABELS: names(class_ids)[None],
            IMAGE_SIZE: np.array([size_hw], np.int32),
        }

    def masks_of_each(outputs: Tensors, sizes: Sequence[Size], _parameters: Sequence[Parameters] = ()) -> list[Tensors]:
        (batch,) = outputs.values()
        return [masks(scores, size_hw) for scores, size_hw in zip(batch, sizes, strict=True)]

    return masks_of_each


def _line_finder(options: TextLines, definition: Definition, dropped: Callable[[int], None]) -> Postprocess:
    from onestream.postprocess.text.lines import find_lines

    fields = options.model_dump(exclude={"kind"})
    # Pictures come in few sizes.
    mapping_of = lru_cache(maxsize=256)(partial(mapping, definition))

    def lines(probabilities: npt.NDArray[Any], size_hw: Size) -> Tensors:
        # A network may leave out the dimension of its one class.
        found = find_lines(probabilities.reshape(probabilities.shape[-2:]), mapping_of(size_hw), **fields)
        return {
            QUADS: found.quads[None],
            SCORES: found.scores[None],
            IMAGE_SIZE: np.array([size_hw], np.int32),
            LEFT_OUT: np.array([[found.left_out]], np.int32),
        }

    def lines_of_each(outputs: Tensors, sizes: Sequence[Size], _parameters: Sequence[Parameters] = ()) -> list[Tensors]:
        (batch,) = outputs.values()
        _count(~np.isfinite(batch), dropped)
        return [lines(probabilities, size_hw) for probabilities, size_hw in zip(batch, sizes, strict=True)]

    return lines_of_each


def _reader(options: Text, characters: Sequence[str] | None, dropped: Callable[[int], None]) -> Postprocess:
    from onestream.postprocess.text.decoding import Decoder

    if characters is None:
        raise ValueError("postprocess text takes the characters of the network's classes")
    decode = Decoder(characters)

    def texts(outputs: Tensors, _sizes: Sequence[Size], _parameters: Sequence[Parameters] = ()) -> list[Tensors]:
        classes, scores = (outputs[name] for name in CTC)
        _count(~np.isfinite(scores) | (classes < 0) | (classes > len(characters)), dropped)
        read = decode(classes, scores)
        found = {TEXTS: np.array(read.texts, object)[:, None], SCORES: read.scores[:, None]}
        if options.character_scores:
            each = [own.astype("<f4").tobytes() for own in read.character_scores]
            found[CHARACTER_SCORES] = np.array(each, object)[:, None]
        return rows(found)

    return texts
