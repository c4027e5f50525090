"""Kinds of results: their names, and the tensors of each. Part of the wire contract (docs/wire-contract.md).

What a model's configuration declares, what a client expects of an answer and the table of the contract come from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from onestream.wire.tensor_names import (
    BOXES,
    CHARACTER_SCORES,
    CLASS_IDS,
    DEGREES,
    EMBEDDING,
    IMAGE_SIZE,
    KEYPOINTS,
    LABELS,
    LEFT_OUT,
    MAP,
    MASKS,
    MATTE,
    POINT_NAMES,
    POINT_SCORES,
    QUADS,
    RUN_LENGTHS,
    SCORES,
    SKELETON,
    TEXTS,
)

KIND_PARAMETER = "kind"
"""Parameter of a model's configuration, and field of the event *opened* of a stream, that names the answer's kind."""

STAGES_PARAMETER = "stages"
"""Parameter of a cascade's configuration, and folder of its model, for what is of its stages."""

DType = Literal["float32", "int32", "uint8", "text", "file"]
_DATATYPES: dict[DType, str] = {"float32": "FP32", "int32": "INT32", "uint8": "UINT8", "text": "BYTES", "file": "BYTES"}

MAY_BE_NONE = "n"
"""The length of this name may be 0; all others are at least 1."""
_FOUND = frozenset({BOXES, QUADS})
_PLACES = _FOUND | {LEFT_OUT}
"""An answer with one of these that its kind does not have is of another kind."""


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor of a kind. ``shape`` is without the batch; a name stands for one length wherever it is.

    ``dtype`` *text* is UTF-8, *file* are other bytes; both are strings to Triton.
    """

    name: str
    dtype: DType
    shape: tuple[int | str, ...]
    meaning: str
    is_optional: bool = False

    def dims(self, lengths: Mapping[str, int]) -> tuple[int, ...]:
        """The dims of a configuration, -1 where a length is not among ``lengths``."""
        return tuple(side if isinstance(side, int) else lengths.get(side, -1) for side in self.shape)

    @property
    def shape_text(self) -> str:
        """The shape of an answer, such as *[1, n, 4]*."""
        return f"[{', '.join(map(str, (1, *self.shape)))}]"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind. ``rows`` names the length that further tensors of any name begin with; empty where there are none.

    ``said`` are the tensors that say what something is, of which an answer has one: the first that it has counts.
    ``nouns`` are what two answers may have the same of, and what there may be several of.
    """

    name: str
    outputs: tuple[Output, ...]
    rows: str = ""
    said: tuple[str, ...] = ()
    nouns: tuple[str, str] = ("best class", "best classes")

    @property
    def is_found(self) -> bool:
        """Whether answers say where something is."""
        return bool(_FOUND & {output.name for output in self.outputs})

    def missing(self, shapes: Mapping[str, Sequence[int]]) -> bool:
        """Whether an answer with tensors of these shapes, with a batch of 1, is not of this kind."""
        lengths: dict[int | str, int] = {}

        def fits(pattern: Sequence[int | str], shape: Sequence[int]) -> bool:
            return len(pattern) == len(shape) and all(
                length == lengths.setdefault(side, length) and (length > 0 or side == MAY_BE_NONE)
                if isinstance(side, str)
                else length == side
                for side, length in zip(pattern, shape, strict=True)
            )

        known = {output.name for output in self.outputs}
        more = [list(shape) for name, shape in shapes.items() if name not in known]
        beside = (1, self.rows) if self.rows else (1,)
        return (
            not _PLACES & shapes.keys() <= known
            or any(
                not fits((1, *output.shape), shapes[output.name]) if output.name in shapes else not output.is_optional
                for output in self.outputs
            )
            or any(not fits(beside, shape[: len(beside)]) for shape in more)
        )

    @property
    def expected(self) -> str:
        """The tensors in words, for errors."""
        words = [f"{'perhaps ' if one.is_optional else ''}{one.name} of {one.shape_text}" for one in self.outputs]
        return ", ".join([*words, *([f"and others of [1, {self.rows}, …]"] if self.rows else [])])


_IMAGE_SIZE = Output(IMAGE_SIZE, "int32", (2,), "height and width of the picture after its EXIF orientation")
_QUADS = Output(QUADS, "float32", ("n", 4, 2), "corners, x and y, clockwise from the top left one of what is in it")
_BOXES = Output(BOXES, "float32", ("n", 4), "x0, y0, x1, y1 of each object")
_NAMES = "their names, UTF-8; the id as text where the pipeline has no labels"
_LEFT_OUT = Output(
    LEFT_OUT, "int32", (1,), "regions found and not looked at, beyond bounds in number or [pixels](cascades.md#regions)"
)
_OBJECTS = (
    _BOXES,
    Output(SCORES, "float32", ("n",), "of the objects, descending"),
    Output(CLASS_IDS, "int32", ("n",), "their classes' ids, from 0 on"),
    Output(LABELS, "text", ("n",), _NAMES),
    _IMAGE_SIZE,
)


def _either(output: Output) -> Output:
    return Output(output.name, output.dtype, output.shape, output.meaning, is_optional=True)


_ROWS = (
    Kind(
        "classification",
        (
            Output(SCORES, "float32", ("k",), "of the best classes, descending"),
            Output(CLASS_IDS, "int32", ("k",), "their ids, from 0 on"),
            Output(LABELS, "text", ("k",), _NAMES, is_optional=True),
        ),
        said=(CLASS_IDS,),
    ),
    Kind("detection", _OBJECTS, said=(CLASS_IDS,), nouns=("object", "objects")),
    Kind(
        "dense_map",
        (
            Output(
                MAP,
                "float32",
                ("height", "width"),
                "the value of each pixel of the picture; 0 where a crop left it out",
            ),
        ),
    ),
    Kind("embedding", (Output(EMBEDDING, "float32", ("values",), "the vector"),)),
    Kind(
        "keypoints",
        (
            *_OBJECTS,
            Output(KEYPOINTS, "float32", ("n", "points", 2), "x and y of each point of each object"),
            Output(POINT_SCORES, "float32", ("n", "points"), "how sure the network is of each, 0 to 1"),
            Output(POINT_NAMES, "text", ("points",), "the names of an object's points"),
            Output(SKELETON, "int32", ("lines", 2), "the two points that each line joins, from 0", is_optional=True),
        ),
        said=(CLASS_IDS,),
        nouns=("object", "objects"),
    ),
    Kind(
        "instance_masks",
        (
            *_OBJECTS,
            Output(
                RUN_LENGTHS,
                "text",
                ("n",),
                "the pixels of each object, of `image_size`: COCO's compressed run lengths, as `counts` of pycocotools",
            ),
        ),
        said=(CLASS_IDS,),
        nouns=("object", "objects"),
    ),
    Kind(
        "oriented_boxes",
        (
            *_OBJECTS,
            Output(QUADS, "float32", ("n", 4, 2), "corners of each object, x and y, clockwise; `boxes` are around"),
        ),
        said=(CLASS_IDS,),
        nouns=("object", "objects"),
    ),
    Kind("matte", (Output(MATTE, "uint8", ("height", "width"), "of the network's picture; 255 is a person"),)),
    Kind(
        "segmentation",
        (
            Output(
                MASKS,
                "file",
                ("masks",),
                "PNG files, 8-bit gray, of `image_size`: one of classes, 255 where there is none, or for each class "
                "one of probabilities, 0 to 255",
            ),
            Output(CLASS_IDS, "int32", ("classes",), "the classes' ids"),
            Output(LABELS, "text", ("classes",), _NAMES),
            _IMAGE_SIZE,
        ),
    ),
    Kind(
        "text_lines",
        (
            _QUADS,
            Output(SCORES, "float32", ("n",), "of the lines, which are in reading order"),
            _IMAGE_SIZE,
            Output(LEFT_OUT, "int32", (1,), "lines beyond `max_lines`"),
        ),
        nouns=("line", "lines"),
    ),
    Kind(
        "text",
        (
            Output(TEXTS, "text", (1,), "UTF-8"),
            Output(SCORES, "float32", (1,), "how sure the network is of it, 0 to 1"),
            Output(CHARACTER_SCORES, "file", (1,), "little-endian float32, one for each character", is_optional=True),
        ),
        said=(TEXTS,),
        nouns=("text", "texts"),
    ),
    Kind(
        "rotation",
        (
            Output(DEGREES, "int32", (1,), "by how much what is seen is turned clockwise: 0, 90, 180 or 270"),
            Output(SCORES, "float32", (1,), "how sure the network is of it, 0 to 1"),
        ),
        said=(DEGREES,),
        nouns=("turn", "turns"),
    ),
    Kind("raw", ()),
    Kind(
        "regions",
        (_either(_BOXES), _either(_QUADS), _IMAGE_SIZE, _either(_LEFT_OUT)),
        rows="n",
        said=(TEXTS, CLASS_IDS, DEGREES),
        nouns=("object", "objects"),
    ),
    Kind(
        "reading",
        (
            _either(_BOXES),
            _either(_QUADS),
            Output(TEXTS, "text", ("n",), "what each region reads, UTF-8"),
            Output(SCORES, "float32", ("n",), "how sure the network is of each text, 0 to 1"),
            _IMAGE_SIZE,
            _either(_LEFT_OUT),
        ),
        rows="n",
        said=(TEXTS,),
        nouns=("text", "lines"),
    ),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind in _ROWS}
"""Every kind by its name. *raw* are a network's outputs as they are; *regions* and *reading* are those of cascades."""


def page_table() -> str:
    """The table of kinds in docs/wire-contract.md."""
    lines = ["| kind | tensor | datatype | shape | meaning |", "|---|---|---|---|---|"]
    for kind in _ROWS:
        lines += [
            f"| `{kind.name}` | `{one.name}`{', optional' if one.is_optional else ''} | {_DATATYPES[one.dtype]} "
            f"| {one.shape_text} | {one.meaning} |"
            for one in kind.outputs
        ]
        if not kind.outputs:
            lines.append(f"| `{kind.name}` | the network's own | | | |")
        if kind.rows:
            lines.append(f"| `{kind.name}` | what the stages say | | [1, {kind.rows}, …] | of each region |")
    return "\n".join(lines) + "\n"
