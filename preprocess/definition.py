"""The definition: what happens between an encoded image and the network's input, as a value.

A :class:`Definition` is frozen, equal by content and carries no device, backend or batch size. Its defaults are the
numerics of torchvision's evaluation transforms on PIL images: EXIF orientation applied, RGB in 8 bit, alpha dropped,
triangle filter with antialiasing and half-pixel centres, long side truncated, crop offset
``int(round((in - out) / 2))`` with Python's rounding, uint8 between resize and normalize,
``(x / scale - mean) / std`` in float32.

>>> definition = Definition(operations=[
...     Decode(), Resize(mode="shorter", size=256), CenterCrop(size=(224, 224)),
...     Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
... ])
>>> definition.output_spec.shape
(3, 224, 224)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from onestream.preprocess.errors import CannotCompile
from onestream.preprocess.moves import CenterCrop, Geometric, Letterbox, Pad, Resize
from onestream.preprocess.operations import (
    ENCODED,
    SUPPORT,
    Color,
    Decode,
    Fill,
    Layout,
    Normalize,
    Output,
    Patches,
    Region,
    TensorSpec,
)
from onestream.preprocess.operations.tiles import Tiles

AnyOperation = Annotated[
    Decode | Region | Resize | CenterCrop | Pad | Letterbox | Tiles | Normalize | Output | Patches,
    Field(discriminator="op"),
]
PreprocessingStage = Literal["decode", "region", "resize", "crop", "normalize"]


class Definition(BaseModel):
    """A chain of operations from encoded bytes to the network's input.

    Raises ``pydantic.ValidationError`` at construction, naming the operation and field, where the chain makes no sense.
    A chain without ``output`` ends in NCHW, float32.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    operations: tuple[AnyOperation, ...] = Field(
        min_length=1,
        description="first ``decode``, or ``region`` in a later stage; then ``resize``, ``center_crop``, ``pad`` and "
        "``letterbox`` in any order; then at most one ``normalize``; then ``output``, or float32 NCHW without it. "
        "``patches`` in place of ``output`` are for vision-language models, in process or with ``network: none``; so "
        "are ``tiles`` before ``normalize``, without ``output`` and in process only",
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        """Append the default output, so that equal definitions are equal however they were written."""
        if isinstance(data, dict) and isinstance(data.get("operations"), list | tuple) and data["operations"]:
            names = [one.get("op") if isinstance(one, dict) else getattr(one, "op", None) for one in data["operations"]]
            if names[-1] not in ("output", "patches") and "tiles" not in names:
                return {**data, "operations": [*data["operations"], Output()]}
        return data

    @model_validator(mode="after")
    def _chain_holds(self) -> Definition:
        spec = ENCODED
        for index, operation in enumerate(self.operations):
            if index == 0 and not isinstance(operation, Decode | Region):
                raise ValueError(f"operations[0] must be decode or region, got {operation.op}")
            if spec.dtype != "uint8" and not isinstance(operation, Normalize | Output | Patches):
                raise ValueError(f"operations[{index}] {operation.op} must come before normalize")
            if spec.layout == "TILES" and not isinstance(operation, Normalize):
                raise ValueError(f"operations[{index}] {operation.op}: only normalize may follow tiles")
            if isinstance(operation, Output | Patches) and index != len(self.operations) - 1:
                raise ValueError(f"operations[{index}] {operation.op} must be the last operation")
            try:
                spec = operation.output(spec)
            except ValueError as error:
                raise ValueError(f"operations[{index}] {operation.op}: {error}") from None
        self._patches_are_whole()
        if self.scales_dct:
            first = next(iter(self.geometry), None)
            if not isinstance(first, Resize) or not first.antialias or first.filter not in SUPPORT:
                raise ValueError(
                    "operations[0] decode: dct_scaling averages pixels, so the next operation must be a resize or "
                    "letterbox that does: antialias true, filter not 'nearest'"
                )
            if first.arithmetic == "aten":
                raise ValueError(
                    "operations[0] decode: dct_scaling ends within a pixel, which PyTorch's resize cannot; it goes "
                    "with arithmetic 'pil' only"
                )
        return self

    def _patches_are_whole(self) -> None:
        patches, last = self.patches, next(reversed(self.geometry), None)
        if patches is None or None not in self.pixels().output_spec.size_hw:
            return
        if not isinstance(last, Resize) or last.multiple_of % patches.unit:
            raise ValueError(
                f"operations[{len(self.operations) - 1}] patches: patch * merge {patches.unit} must divide the sides, "
                f"which depend on the image; let a resize with multiple_of {patches.unit} come last"
            )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Definition:
        """The definition, with other operations where ``update`` has any: without what was computed of this one."""
        return Definition.model_validate(dict(update)) if update else super().model_copy(deep=deep)

    @cached_property
    def source(self) -> Decode | Region:
        """The first operation: whole pictures, or regions of them."""
        operation = self.operations[0]
        assert isinstance(operation, Decode | Region)
        return operation

    @cached_property
    def region(self) -> Region | None:
        """The first operation where it takes regions."""
        return self.source if isinstance(self.source, Region) else None

    @cached_property
    def scales_dct(self) -> bool:
        """Whether JPEGs are decoded at a fraction of their size."""
        return isinstance(self.source, Decode) and self.source.dct_scaling

    @cached_property
    def color(self) -> Color:
        """The channels of its pixels, and their order."""
        return self.source.color

    @cached_property
    def geometry(self) -> tuple[Geometric, ...]:
        """The operations that move pixels, letterbox written as its two parts."""
        found: list[Geometric] = []
        for operation in self.operations:
            if isinstance(operation, Letterbox):
                found += operation.parts()
            elif isinstance(operation, Resize | CenterCrop | Pad):
                found.append(operation)
        return tuple(found)

    @cached_property
    def fills(self) -> tuple[Fill, ...]:
        """The distinct levels, or colours, with which the geometry may fill, in order of appearance."""
        found: list[Fill | None] = []
        least_side = 1
        for operation in self.geometry:
            level, least_side = operation.fills(least_side)
            found.append(level)
        return tuple(dict.fromkeys(level for level in found if level is not None))

    @cached_property
    def resizes_once(self) -> bool:
        """Whether the geometry is at most one resize, followed by crops and pads only."""
        return not any(isinstance(operation, Resize) for operation in self.geometry[1:])

    @cached_property
    def resize(self) -> Resize | None:
        """The first resize, if there is one; that of a letterbox counts."""
        return next((op for op in self.geometry if isinstance(op, Resize)), None)

    @cached_property
    def normalize(self) -> Normalize | None:
        """The normalization, if there is one."""
        return next((op for op in self.operations if isinstance(op, Normalize)), None)

    @cached_property
    def network_input(self) -> Output:
        """The last operation. Raises ``CannotCompile`` where it ends in ``patches`` or tiles, no network's input."""
        operation = self.operations[-1]
        if self.for_processor is not None:
            raise CannotCompile(
                f"the definition ends in {self.for_processor.op}, which onestream.preprocess.patches.Processor makes; "
                "here it must end in output"
            )
        assert isinstance(operation, Output)
        return operation

    @cached_property
    def patches(self) -> Patches | None:
        """The last operation, where it is that."""
        operation = self.operations[-1]
        return operation if isinstance(operation, Patches) else None

    @cached_property
    def for_processor(self) -> Patches | Tiles | None:
        """The operation whose rows only a ``patches.Processor`` makes, if there is one."""
        return self.patches or next((op for op in self.operations if isinstance(op, Tiles)), None)

    @cached_property
    def output_spec(self) -> TensorSpec:
        """The specification of the network's input, per sample."""
        spec = ENCODED
        for operation in self.operations:
            spec = operation.output(spec)
        return spec

    def pixels(self) -> Definition:
        """The same definition up to its uint8 pixels in NHWC: what travels to the network's door.

        The rest (normalize, layout and dtype) is elementwise or a transposition, so it can be done by the network's
        own graph with the same result, and a quarter of the bytes travel.
        """
        kept = [op for op in self.operations if not isinstance(op, Tiles | Normalize | Output | Patches)]
        return Definition(operations=(*kept, Output(layout="NHWC", dtype="uint8")))

    def with_layout(self, layout: Layout) -> Definition:
        """The same definition with another order of the output's dimensions."""
        kept = [op for op in self.operations if not isinstance(op, Output)]
        return Definition(operations=(*kept, self.network_input.model_copy(update={"layout": layout})))

    @property
    def stages(self) -> tuple[PreprocessingStage, ...]:
        """The preprocessing stages of this definition that ``stage`` cuts after, in order."""
        return ("region" if isinstance(self.source, Region) else "decode", "resize", "crop", "normalize")

    def stage(self, name: PreprocessingStage) -> Definition:
        """The definition cut after a preprocessing stage, for comparing backends stage by stage.

        *decode*, and *region* of a definition that begins with it, have no geometry and no ``dct_scaling``, *resize*
        keeps the geometry up to and including the last resize, *crop* all of it; these end in uint8 NHWC. *normalize*
        is the whole definition. Raises ``ValueError`` for a stage that this definition has not.
        """
        if name not in self.stages:
            raise ValueError(f"no stage {name!r} in a definition that begins with {self.source.op}")
        if name == "normalize":
            return self
        geometry, source = list(self.geometry), self.source
        if name in ("decode", "region"):
            geometry, source = [], self.source.model_copy(update={"dct_scaling": False} if self.scales_dct else {})
        if name == "resize":
            while geometry and not isinstance(geometry[-1], Resize):
                geometry.pop()
        return Definition(operations=(source, *geometry, Output(layout="NHWC", dtype="uint8")))

    def canonical_json(self) -> str:
        """JSON with every field written out, sorted keys and no spaces: equal definitions have equal text."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hexadecimal."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()

    @classmethod
    def from_json(cls, text: str) -> Definition:
        """Read a definition from JSON."""
        return cls.model_validate_json(text)

    @classmethod
    def from_yaml(cls, text: str) -> Definition:
        """Read a definition from YAML. Raises ``user_files.BadYaml``, or pydantic's error for a bad field."""
        from onestream.preprocess.user_files import read_plain_yaml

        return cls.model_validate(read_plain_yaml(text))

    def to_yaml(self) -> str:
        """Write the definition as YAML, with every field written out."""
        import yaml  # a served model reads and writes none

        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def first_difference(left: Definition, right: Definition) -> str:
    """Name the first field in which two definitions differ, with both values; empty when they are equal.

    >>> from onestream.preprocess.operations import Decode
    >>> first_difference(Definition(operations=[Decode()]), Definition(operations=[Decode(color="gray")]))
    "operations[0].color: 'rgb' != 'gray'"
    """
    return _difference("", _fields(left), _fields(right))


def _fields(definition: Definition) -> dict[str, Any]:
    """Every field of every operation, those too that are not written where they are the default."""
    return {
        "operations": [
            {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in ((name, getattr(operation, name)) for name in type(operation).model_fields)
            }
            for operation in definition.operations
        ]
    }


def _difference(path: str, left: Any, right: Any) -> str:
    if isinstance(left, dict) and isinstance(right, dict):
        for key in (*left, *(key for key in right if key not in left)):
            found = _difference(f"{path}.{key}".lstrip("."), left.get(key), right.get(key))
            if found:
                return found
        return ""
    if isinstance(left, list) and isinstance(right, list):
        for index, (one, other) in enumerate(zip(left, right, strict=False)):
            found = _difference(f"{path}[{index}]", one, other)
            if found:
                return found
        return "" if len(left) == len(right) else f"{path}: {len(left)} entries != {len(right)} entries"
    return "" if left == right and type(left) is type(right) else f"{path}: {left!r} != {right!r}"


WHOLE_PICTURE = Definition(operations=(Decode(), Output(layout="NHWC", dtype="uint8")))
"""Decodes a picture as it is, to uint8 (height, width, 3) RGB: what ``FromPicture`` takes."""
