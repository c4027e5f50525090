"""What results of all kinds have in common: how they are read from tensors and from JSON, and told in tables."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from onestream.client._transports.base import Tensors
from onestream.client.errors import UnexpectedResponse
from onestream.wire.comparing import Compared, compare
from onestream.wire.kinds import KINDS, DType
from onestream.wire.tensor_names import CLASS_IDS, IMAGE_SIZE, LABELS, SCORES, TEXTS

if TYPE_CHECKING:
    from PIL.Image import Image

Array = npt.NDArray[Any]
Size = tuple[int, int]
"""Height and width, in pixels."""

Schema = dict[str, Any]
"""Columns of a table by their names, with the type of their cells: a plain type, a ``list`` of one, or a ``tuple``."""

LONGEST_SIDE = 2**31 - 1
"""Of a PNG file, the only picture of an answer."""
_SAID: dict[str, DType] = {LABELS: "text", TEXTS: "text", SCORES: "float32", CLASS_IDS: "int32"}
_NUMPY: dict[DType, Any] = {"float32": np.float32, "int32": np.int32, "uint8": np.uint8, "text": object, "file": object}
OF_A_REQUEST = ("model", "request_id", "latency_ms")

ResultT = TypeVar("ResultT", bound="Result")


@dataclass(frozen=True, slots=True)
class Line:
    """One class, region, mask or tensor: what it is, its score where it has one, and where it is or what it holds."""

    what: str
    score: float | None = None
    where: str = ""


class Place(NamedTuple):
    """A part of a picture: four corners, clockwise, x and y in pixels, what is there, and its class and score."""

    quad: Sequence[Sequence[float]]
    label: str
    class_id: int
    score: float | None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Result(ABC):
    """The answer of a pipeline to one image, of any kind.

    ``latency_ms`` runs from handing the request to the transport until its answer was read, retries included; reading
    and encoding the image are not in it. ``request_id`` also appears in the server's log; frames of a video have no
    request of their own, so theirs is empty.
    """

    model: str
    request_id: str
    latency_ms: float

    kind: ClassVar[str]
    """The row of ``onestream.wire.kinds``."""
    noun: ClassVar[str]
    """What a pipeline of this kind answers."""
    what: ClassVar[str] = "label"
    where: ClassVar[str] = ""
    """What ``what`` and ``where`` of the lines are; the second is empty where they have no ``where``."""
    nothing: ClassVar[str] = "nothing"
    """What is said where there is no line."""
    nothing_found: ClassVar[str] = "Nothing."
    """The same as a sentence."""
    prints_texts: ClassVar[bool] = False
    """Whether the lines are texts to be read as they are, and no table."""
    is_tabular: ClassVar[bool] = True
    """Whether results have a place in a table."""
    is_short: ClassVar[bool] = False
    """Whether a result is a few plain values."""

    @classmethod
    def from_tensors(cls: type[ResultT], model: str, tensors: Tensors, request_id: str, latency_ms: float) -> ResultT:
        """The result in the outputs of a pipeline of this kind. Raises UnexpectedResponse for other outputs."""
        found = checked(cls.kind, model, tensors)
        return cls.of(found, model=model, request_id=request_id, latency_ms=latency_ms)

    @classmethod
    def of(cls: type[ResultT], found: dict[str, Array], *, model: str, request_id: str, latency_ms: float) -> ResultT:
        """The result of ``checked`` tensors. Raises as ``fields_of``."""
        return cls(**cls.fields_of(found, model), model=model, request_id=request_id, latency_ms=latency_ms)

    @classmethod
    @abstractmethod
    def fields_of(cls, found: dict[str, Array], model: str) -> dict[str, Any]:
        """The fields but those of the request, from ``checked`` tensors.

        Raises UnexpectedResponse for what else breaks the contract.
        """

    @classmethod
    def from_dict(cls: type[ResultT], said: Mapping[str, Any]) -> ResultT:
        """The result that ``to_dict`` wrote; what it said of the request may be missing. Raises as ``of``, KeyError."""
        found = {name: cls._array(name, value) for name, value in said.items() if name not in OF_A_REQUEST}
        return cls.of(
            found,
            model=said.get("model", ""),
            request_id=said.get("request_id", ""),
            latency_ms=said.get("latency_ms", 0.0),
        )

    @classmethod
    def _array(cls, name: str, value: Any) -> Array:
        """A value of JSON as the tensor that it was, without the batch."""
        row = next((one for one in KINDS[cls.kind].outputs if one.name == name), None)
        if row is None:
            return array_of(value)
        array = np.array(value, _NUMPY[row.dtype])
        if array.size and array.ndim >= len(row.shape):
            return array
        # One value stands for a row of one, and lists of nothing show no sides.
        return array.reshape([side if isinstance(side, int) else min(array.size, 1) for side in row.shape])

    @abstractmethod
    def values(self) -> dict[str, Any]:
        """Plain values under the names that they have on the wire, without those of the request."""

    def values_of_frame(self) -> dict[str, Any]:
        """As ``values``, in the JSON of a frame of a video."""
        return self.values()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON, under the names that they have on the wire."""
        return {name: getattr(self, name) for name in OF_A_REQUEST} | self.values()

    def schema(self, *, top: int = 1, is_flat: bool = False) -> Schema:
        """The columns of results like this: one record for each image; ``is_flat``: of plain cells alone."""
        return dict.fromkeys(self.records(is_flat=is_flat)[0], Any)

    def records(self, *, is_flat: bool = False) -> list[dict[str, Any]]:
        """The records of this image, one at least, by the names of their columns. Without more ado lists are JSON."""
        values = self.values()
        return [{name: cell(value) for name, value in values.items()} if is_flat else values]

    @property
    def titles(self) -> tuple[str, str]:
        """``what`` and ``where``."""
        return self.what, self.where

    @property
    def shows_schema(self) -> bool:
        """Whether the columns can be told from this result."""
        return True

    @abstractmethod
    def summary(self) -> list[Line]:
        """The lines of the answer, for people; none where there is nothing."""

    def best(self: ResultT, top: int) -> ResultT:
        """Of a classification its ``top`` best classes alone; any other result as it is."""
        return self

    def caption(self) -> list[str]:
        """A few short lines over a video; none where there is nothing to say."""
        return [f"{one.what} {one.score:.2f}" for one in self.summary()] if self.is_short else []

    @property
    def note(self) -> str:
        """What was found and is not in the result, as a sentence; empty where that is nothing."""
        return ""

    @property
    def places(self) -> list[Place] | None:
        """Where the lines are in the picture; None where they have no places."""
        return None

    @property
    def drawn_size(self) -> Size | None:
        """The height and width of pictures that ``draw`` takes; None where nothing can be drawn."""
        return None

    def draw(self, image: Image) -> Image:
        """A copy of ``image``, upright and in RGB, with the result drawn on it. Needs Pillow.

        Raises ValueError where nothing can be drawn, or the picture is of another size.
        """
        raise ValueError(f"{self.noun} are not drawn; {image.size[0]}x{image.size[1]} pixels stay as they are")

    @property
    def levels(self) -> npt.NDArray[np.uint8] | None:
        """The matte of which the answer consists, (height, width) of the network's picture; None of other kinds."""
        return None

    def to_coco(self, image_id: int | str) -> list[dict[str, Any]] | None:
        """The entries of COCO's results format for a picture with this id; None where the kind has none."""
        return None

    def arrays(self) -> dict[str, Array]:
        """The answer's tensors by their names on the wire, each with a batch of 1."""
        return {name: self._array(name, value)[None] for name, value in self.values().items()}

    def compare(self, expected: Result) -> Compared:
        """What of another answer of this kind is the same in this one, lost, added or something else."""
        return compare(self.kind, expected.arrays(), self.arrays())


def without_request(result: ResultT, latency_ms: float) -> ResultT:
    """A result as one of many, of which the request says nothing."""
    return replace(result, model="", request_id="", latency_ms=latency_ms)


def plain(array: Array) -> Any:
    """The values of an array in lists: bytes are read as UTF-8, and what is no finite number is None."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        values = array.astype(object)
        values[~np.isfinite(array)] = None
        return values.tolist()
    return array.tolist() if array.dtype != object else _readable(array.tolist())


def array_of(value: list[Any]) -> Array:
    """What ``plain`` made of an array, as one again."""
    array = np.array(value, object)
    kinds = {type(one) for one in array.flat}
    return array if str in kinds else array.astype(np.int64 if kinds <= {bool, int} else np.float64)


def type_of(array: Array) -> Any:
    """The type of a tensor's cell in a record for each image: lists as deep as it has dimensions."""
    kind: Any = {"O": str, "i": int, "u": int, "b": bool}.get(array.dtype.kind, float)
    for _ in array.shape:
        kind = list[kind]
    return kind


def cell(value: Any, *, is_best: bool = False) -> Any:
    """A plain cell: of a list the first value where that is the best, else JSON."""
    while is_best and isinstance(value, list):
        value = value[0] if value else None
    return json.dumps(value) if isinstance(value, list) else value


def tensor_line(name: str, array: Array) -> Line:
    """A tensor in one line."""
    values = f"{array.dtype} {list(array.shape)}"
    if array.size and np.issubdtype(array.dtype, np.number):
        values += f", from {array.min():.4g} to {array.max():.4g}"
    return Line(name, where=values)


def box_text(x0: float, y0: float, x1: float, y1: float) -> str:
    """A box in whole pixels."""
    return f"{x0:.0f}, {y0:.0f}, {x1:.0f}, {y1:.0f}"


# ---- what every answer is checked for ------------------------------------------------------------------------------


def checked(kind: str, model: str, tensors: Tensors) -> dict[str, Array]:
    """The tensors of an answer without the batch, which are what they must be for this kind; texts are ``str``.

    Raises UnexpectedResponse for other names, shapes, datatypes and values.
    """
    row = KINDS[kind]
    if row.missing({name: array.shape for name, array in tensors.items()}):
        seen = {name: list(array.shape) for name, array in tensors.items()}
        raise UnexpectedResponse(
            f"model {model!r} answered {seen or 'nothing'}, expected {row.expected}; for any kind use predict"
        )
    dtypes = {one.name: one.dtype for one in row.outputs}
    return {name: _values(model, name, dtypes.get(name) or _said(name), array[0]) for name, array in tensors.items()}


def size_of(found: Mapping[str, Array], model: str) -> Size:
    """Height and width of the picture. Raises UnexpectedResponse."""
    height, width = found[IMAGE_SIZE].tolist()
    if not (0 < height <= LONGEST_SIDE and 0 < width <= LONGEST_SIDE):
        raise UnexpectedResponse(
            f"model {model!r} answered a picture of {[height, width]}, expected sides of 1 to {LONGEST_SIDE}"
        )
    return height, width


def _said(name: str) -> DType | None:
    """The datatype of what a stage of a cascade said, from its last part, such as *scores* of *detect_scores*."""
    return next((dtype for last, dtype in _SAID.items() if name == last or name.endswith(f"_{last}")), None)


def _values(model: str, name: str, dtype: DType | None, values: Array) -> Array:
    """The values of a tensor, which are of its datatype: any width of numbers is taken, floats become float32."""
    if dtype == "float32":
        if values.dtype.kind != "f" or not np.isfinite(values).all():
            raise _wrong(model, name, values, "finite floats")
        return values.astype(np.float32, copy=False)
    if dtype == "int32" and (values.dtype.kind not in "iu" or (values < 0).any()):
        raise _wrong(model, name, values, "whole numbers from 0 on")
    if dtype == "uint8" and values.dtype != np.uint8:
        raise _wrong(model, name, values, "uint8")
    if dtype in ("text", "file") and values.dtype != object:
        raise _wrong(model, name, values, "strings")
    if dtype != "text":
        return values
    try:
        texts = [str(text, "utf-8") for text in values.ravel()]
    except UnicodeDecodeError as error:
        raise UnexpectedResponse(f"model {model!r} answered {name} that are no UTF-8: {error}") from None
    return np.array([*texts, None], object)[:-1].reshape(values.shape)


def _wrong(model: str, name: str, values: Array, expected: str) -> UnexpectedResponse:
    seen = np.array2string(values, threshold=10, edgeitems=3)
    return UnexpectedResponse(f"model {model!r} answered {name} of {values.dtype}: {seen}, expected {expected}")


def _readable(value: Any) -> Any:
    if isinstance(value, list):
        return [_readable(one) for one in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value
