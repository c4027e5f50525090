"""Results that consist of rows, such as objects: they are indexed, filtered and joined like a list."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, overload

import numpy as np
import numpy.typing as npt

from onestream.client.kinds.base import OF_A_REQUEST, Place, Result, Size

if TYPE_CHECKING:
    from PIL.Image import Image

Box = tuple[float, float, float, float]
Quad = tuple[tuple[float, float], ...]
"""Four corners, x and y in pixels of the upright picture, clockwise from the top left one of what is in it."""

RowT = TypeVar("RowT")
ListedT = TypeVar("ListedT", bound="Listed[Any]")


@dataclass(frozen=True, slots=True, eq=False)
class Listed(Result, Generic[RowT]):
    """A result of some rows. ``result[0]`` is the first; ``result[:5]``, a mask and a list of indexes give a result.

    ``result[result.scores > 0.5]`` keeps the rows for which a mask is True. Indexing raises IndexError as NumPy does.
    """

    rows: ClassVar[tuple[str, ...]]
    """Fields with one value a row: arrays, tuples or dicts of arrays; or None. The first one always has values."""

    def __len__(self) -> int:
        return len(getattr(self, self.rows[0]))

    @abstractmethod
    def __iter__(self) -> Iterator[RowT]: ...

    @overload
    def __getitem__(self, index: int) -> RowT: ...
    @overload
    def __getitem__(self: ListedT, index: slice | Sequence[int] | npt.NDArray[Any]) -> ListedT: ...
    def __getitem__(self, index: Any) -> Any:
        places = np.arange(len(self))[index]
        if np.ndim(places) == 0:
            return next(iter(self[[int(places)]]))
        return replace(self, **{name: _taken(getattr(self, name), places) for name in self.rows})

    @classmethod
    def concat(cls: type[ListedT], results: Iterable[ListedT]) -> ListedT:
        """The rows of several results for one picture, in the order given.

        ``model``, ``request_id`` and ``latency_ms`` are those of the first; counts are added. Raises ValueError without
        results, and where these differ in anything else, such as ``image_size``.
        """
        given = list(results)
        if not given:
            raise ValueError(f"no {cls.noun} to concatenate")
        # Without rows some fields are unknown.
        filled = [one for one in given if len(one)] or given[:1]
        joined = {}
        for name in [field.name for field in fields(cls) if field.name not in OF_A_REQUEST]:
            values = [getattr(one, name) for one in (filled if name in cls.rows else given)]
            try:
                joined[name] = _joined(values) if name in cls.rows else _common(values)
            except ValueError as error:
                raise ValueError(f"{cls.noun} with different {name} cannot be concatenated: {error}") from error
        return replace(given[0], **joined)


class _Found(Protocol):
    """A row that has a place in the picture."""

    @property
    def quad(self) -> Quad: ...
    @property
    def label(self) -> str: ...
    @property
    def class_id(self) -> int: ...
    @property
    def score(self) -> float | None: ...


FoundT = TypeVar("FoundT", bound=_Found)


def _alias(name: str) -> Any:
    return property(lambda self: getattr(self, name, None), doc=f"``{name}``, by supervision's name; None without it.")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Located(Listed[FoundT]):
    """Rows that have places in the picture. ``image_size`` is its height and width after its EXIF orientation."""

    image_size: Size

    texts_beside: ClassVar[bool] = False
    """Whether the texts that ``draw`` writes stand beside what was found, where there is room."""

    xyxy = _alias("boxes")
    confidence = _alias("scores")
    class_id = _alias("class_ids")
    tracker_id = _alias("track_ids")

    def caption(self) -> list[str]:
        counts = Counter(one.label or "region" for one in self)
        return [", ".join(f"{count} {label}" for label, count in counts.most_common()) or "nothing"]

    @property
    def places(self) -> list[Place]:
        return [Place(one.quad, one.label, one.class_id, one.score) for one in self]

    @property
    def drawn_size(self) -> Size:
        return self.image_size

    def draw(self, image: Image) -> Image:
        """A copy of ``image``, upright and in RGB, with outlines and texts or names and scores. Needs Pillow.

        Raises ValueError where the picture is not of ``image_size``.
        """
        from onestream.client.kinds.drawing import draw_quads, upright

        picture = upright(image, self.image_size)
        self._draw_below(picture)
        draw_quads(picture, [(one.quad, one.class_id, str(one)) for one in self], spare_others=self.texts_beside)
        return picture

    def _draw_below(self, picture: Image) -> None:
        """Draw what lies below the outlines over an upright picture in RGB."""


def _taken(values: Any, places: npt.NDArray[np.int64]) -> Any:
    if isinstance(values, Mapping):
        return {name: array[places] for name, array in values.items()}
    if isinstance(values, tuple):
        return tuple(values[place] for place in places.tolist())
    return None if values is None else values[places]


def _joined(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, tuple):
        return tuple(chain.from_iterable(values))
    if isinstance(first, Mapping):
        if any(one.keys() != first.keys() for one in values):
            raise ValueError(f"{sorted(map(sorted, values))}")
        return {name: np.concatenate([one[name] for one in values]) for name in first}
    return None if all(one is None for one in values) else np.concatenate(values)


def _common(values: list[Any]) -> Any:
    """What all have, or the sum of counts."""
    if isinstance(values[0], int):
        return sum(values)
    if any(one != values[0] for one in values):
        raise ValueError(f"{list(dict.fromkeys(values))}")
    return values[0]
