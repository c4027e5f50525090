"""Persons before a background."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from onestream.postprocess.kinds.base import Level, Opening, Options, Postprocess, Tensors, rows
from onestream.wire.tensor_names import MATTE


class ColorBackground(Options):
    """One colour."""

    kind: Literal["color"] = "color"
    rgb: tuple[Level, Level, Level] = Field(default=(0, 177, 64), description="[red, green, blue]")


class BlurBackground(Options):
    """The picture itself, blurred."""

    kind: Literal["blur"] = "blur"
    radius: int = Field(default=28, ge=12, le=512, description="about the standard deviation, in pixels of the picture")


class PictureBackground(Options):
    """An image file. It is scaled to cover the picture."""

    kind: Literal["picture"] = "picture"
    path: str = Field(description="relative to the pipeline file")


AnyBackground = ColorBackground | BlurBackground | PictureBackground


class Matte(Options):
    """Which pixels belong to a person, from a network with one output (batch, height, width) of probabilities."""

    ends_in_graph: ClassVar[bool] = True
    takes_one_size: ClassVar[bool] = True
    works_on_frames: ClassVar[bool] = True

    kind: Literal["matte"] = "matte"
    softness: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="the range of probabilities around one half that stays transparent in parts; 1 keeps them as they "
        "are, less makes edges harder",
    )
    background: AnyBackground = Field(
        default=BlurBackground(), discriminator="kind", description="what a composed video shows behind persons"
    )

    def open(self, opening: Opening) -> Postprocess:
        """See ``Options.open``."""
        return lambda outputs, _sizes, _parameters=(): rows(outputs if opening.has_tail else _matte(outputs, self))


def _matte(outputs: Tensors, options: Matte) -> Tensors:
    from onestream.postprocess.matte.composer import alpha

    (person,) = outputs.values()
    return {MATTE: alpha(person, softness=options.softness)}
