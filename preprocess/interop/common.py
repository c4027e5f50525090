"""Shared by the importers: numbers read strictly, filters by name, and normalizations that follow each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import ValidationError

from onestream.preprocess.definition import Definition, first_difference
from onestream.preprocess.errors import CannotCompile, CannotImport
from onestream.preprocess.moves import CenterCrop, Pad, Resize
from onestream.preprocess.operations import ENCODED, Filter, Normalize, Operation, Output, Patches
from onestream.preprocess.operations.tiles import Tiles

Channels = tuple[float, ...]
Step = tuple[Channels, Channels]
"""Mean and standard deviation of one ``(x - mean) / std``."""

FILTERS: tuple[Filter, ...] = get_args(Filter)


@dataclass(frozen=True)
class Imported:
    """A definition, where it is from, and what its user should know of it, in sentences.

    ``postprocess``: the fields of a pipeline file's section of that name, where the source says what the network's
    outputs mean. ``has_test_size``: whether it is timm's, whose configs may have another size for tests.
    """

    definition: Definition
    origin: str
    notes: tuple[str, ...] = ()
    postprocess: Mapping[str, Any] | None = None
    has_test_size: bool = False


def filter_named(name: Any, *, where: str) -> Filter:
    """A filter by its usual name. Raises ``CannotImport`` for one that definitions have not."""
    for known in FILTERS:
        if name == known:
            return known
    raise CannotImport(
        f"{where} is {name!r}, a filter that definitions have not; they have {', '.join(FILTERS)}. The nearest is "
        "bilinear, but its pixels differ: measure the accuracy before you write it"
    )


def whole(value: Any, *, where: str) -> int:
    """A number of pixels. Raises ``CannotImport``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CannotImport(f"{where} is {value!r}, expected a whole number of pixels")
    return value


def pair(value: Any, *, where: str) -> tuple[int, int]:
    """(height, width) from [height, width] or one number for both. Raises ``CannotImport``."""
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) in (1, 2):
        return whole(value[0], where=where), whole(value[-1], where=where)
    return (whole(value, where=where),) * 2


def per_channel(value: Any, channels: int, *, where: str) -> Channels:
    """One number for each channel, from as many or from one for all. Raises ``CannotImport``."""
    values = [value] if isinstance(value, int | float) else value
    try:
        numbers = tuple(float(number) for number in values)
    except (TypeError, ValueError):
        raise CannotImport(f"{where} is {value!r}, expected numbers") from None
    if len(numbers) not in (1, channels):
        raise CannotImport(f"{where} has {len(numbers)} values for {channels} channels")
    return numbers if len(numbers) == channels else numbers * channels


def class_names(names: Any, *, where: str) -> list[str]:
    """The names of classes in their order, of a list or of a mapping from their numbers. Raises ``CannotImport``."""
    if isinstance(names, Mapping):
        numbered = {int(number): name for number, name in names.items() if str(number).isdecimal()}
        if len(numbered) != len(names) or sorted(numbered) != list(range(len(names))):
            raise CannotImport(f"{where} has the numbers {_few(names)}; expected 0 to {len(names) - 1}")
        names = [numbered[number] for number in range(len(names))]
    if not isinstance(names, Sequence) or isinstance(names, str) or not names:
        raise CannotImport(f"{where} is {str(names)[:60]!r}, expected the names of classes")
    for name in names:
        if not isinstance(name, str) or name.splitlines() != [name] or not name.strip():
            raise CannotImport(f"{where} has {str(name)[:60]!r}, which is no name on one line")
    return list(names)


def _few(values: Any) -> str:
    shown = ", ".join(str(value)[:20] for value in list(values)[:5])
    return shown + (", ..." if len(values) > 5 else "")


def ringed(size_hw: tuple[int, int], fill: Any, filter: Filter) -> list[Operation]:
    """timm's ``ResizeKeepRatio(longest=1)`` and ``CenterCropOrPad`` to one size, whose border has this colour."""
    levels = fill[0] if isinstance(fill, Sequence) and len(set(fill)) == 1 else fill
    return [
        Resize(mode="fit", size=size_hw, filter=filter, rounding="quotient"),
        Pad.model_validate({"size": size_hw, "value": levels}),
    ]


def assemble(operations: Sequence[Operation], *, scale: float | None, steps: Sequence[Step], dtype: str) -> Definition:
    """The definition of these operations, then ``x / scale``, then each step's ``(x - mean) / std``.

    ``scale`` None keeps the levels 0 to 255. Steps that follow each other become one, which is equal but for float32's
    last bits.
    """
    chain = list(operations)
    if scale is not None or steps:
        channels = 1 if getattr(operations[0], "color", "rgb") == "gray" else 3
        mean, std = (0.0,) * channels, (1.0,) * channels
        for next_mean, next_std in steps:
            mean = tuple(m + s * n for m, s, n in zip(mean, std, next_mean, strict=True))
            std = tuple(s * n for s, n in zip(std, next_std, strict=True))
        chain.append(Normalize(mean=mean, std=std, scale=1.0 if scale is None else scale))
    return Definition.model_validate({"operations": [*chain, Output.model_validate({"dtype": dtype})]})


def check_same(definition: Definition, read: Definition, *, what: str) -> None:
    """Raise ``CannotCompile``, naming the first difference, where what was written for a library reads otherwise."""
    difference = first_difference(_plainly(definition), _plainly(read))
    if difference:
        raise CannotCompile(f"{what} do not do this: {difference}, which is the nearest that they do")


def _plainly(definition: Definition) -> Definition:
    """With letterbox as its parts, without crops that cut nothing, and with one rounding where both are the same."""
    operations: list[Operation] = [definition.source]
    spec = definition.source.output(ENCODED)
    for operation in definition.geometry:
        kept = operation
        if isinstance(operation, CenterCrop) and None not in spec.size_hw:
            usual = operation.model_copy(update={"rounding": "nearest"})
            height, width = spec.size_hw
            size_hw = (height or 0, width or 0)
            kept = usual if usual.window(size_hw) == operation.window(size_hw) else operation
        if not isinstance(operation, CenterCrop) or spec.size_hw != operation.size:
            operations.append(kept)
        spec = operation.output(spec)
    kept_whole = Tiles | Normalize | Output | Patches
    rest = [operation for operation in definition.operations if isinstance(operation, kept_whole)]
    return Definition.model_validate({"operations": [*operations, *rest]})


@contextmanager
def refusing() -> Iterator[None]:
    """Turns a definition's own ``ValidationError``, such as for a side of a million pixels, into ``CannotImport``."""
    try:
        yield
    except ValidationError as error:
        # A size may be one number or two; that it is not the other of them is no news.
        problem = max(error.errors(), key=lambda one: one["type"] not in ("int_type", "tuple_type"))
        field = problem["loc"][0] if problem["loc"] else "operations"
        reason = problem["msg"].removeprefix("Value error, ")
        raise CannotImport(f"{error.title} {field}: {reason}, got {problem['input']!r}") from None
