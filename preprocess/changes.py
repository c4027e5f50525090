"""Changes of a picture's levels that augmentation draws: values that say what happens, and Pillow and NumPy that do it.

The reference runs this code, DALI on a CPU compiled loops of the same arithmetic where ``cpu.levels`` has them, so that
equal pixels stay equal. Pixels are uint8 (height, width, channels), RGB or gray. *Pillow's* means that the arithmetic
is what torchvision runs on PIL images.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from pydantic import BaseModel, ConfigDict, Field

from onestream.preprocess.geometry import Size
from onestream.preprocess.operations import Color, Level

if TYPE_CHECKING:
    from typing_extensions import Self

Pixels = npt.NDArray[np.uint8]
Factors = npt.NDArray[np.float32]
Recolor = Callable[[Pixels, Factors], Pixels]
Apply = Callable[[Pixels, "AnyChange"], Pixels]
_Rgb = tuple[Level, Level, Level]
CHANGES_ON_GPU = (
    "linear", "brightness", "contrast", "saturation", "hue", "sharpness", "posterize", "solarize", "autocontrast",
    "equalize", "invert", "erase",
)  # fmt: skip
"""Those that kernels on a GPU can do (``onestream.preprocess.cuda.changes``), by their names."""


class _Change(BaseModel):
    """Base of the changes: a frozen value, equal by content, that is written as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def apply(self, pixels: Pixels) -> Pixels:
        """The changed pixels, in an array of their own or the same one where nothing changes."""
        image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
        made = np.asarray(self.on_image(image))
        return made if made.ndim == 3 else made[:, :, None]

    def on_image(self, image: Image.Image) -> Image.Image:
        """The changed picture, RGB or gray, of changes that are Pillow's."""
        raise NotImplementedError

    def cut(self, offset: tuple[float, float], scale: float, size_hw: Size) -> Self | None:  # noqa: ARG002 (for what has a place)
        """The same change of a window of the canvas, enlarged by ``scale``; None where it does nothing there.

        ``offset`` is the window's top left corner, (y, x) in pixels of the enlarged canvas, ``size_hw`` its size.
        """
        return self


class Linear(_Change):
    """A linear map of each pixel's levels, rounded to nearest and clipped.

    ``factors`` is (channels, channels + 1), numbers of float32: the factors of the input channels, in the definition's
    order, and what is added, in levels.
    """

    op: Literal["linear"] = "linear"
    factors: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, factors: Factors) -> Linear:
        """The change of an array of factors."""
        return cls(factors=tuple(tuple(row) for row in factors.astype(np.float32).tolist()))

    @property
    def array(self) -> Factors:
        """The factors, float32 (channels, channels + 1)."""
        return np.array(self.factors, np.float32)

    def apply(self, pixels: Pixels) -> Pixels:
        """See ``recolored``."""
        return recolored(pixels, self.array)

    def __str__(self) -> str:
        return "linear [" + "; ".join(", ".join(f"{value:.3g}" for value in row) for row in self.factors) + "]"


class _Enhanced(_Change):
    """A mixture of the picture with a plain version of itself, Pillow's ``ImageEnhance``: a factor of 1 keeps it."""

    factor: float = Field(ge=0)
    enhancer: ClassVar[Any]

    def on_image(self, image: Image.Image) -> Image.Image:
        """See ``_Change.on_image``."""
        enhanced: Image.Image = self.enhancer(image).enhance(self.factor)
        return enhanced

    def __str__(self) -> str:
        return f"{type(self).__name__.lower()} {self.factor:.3g}"


class Brightness(_Enhanced):
    """Levels times a factor, cut to whole ones: a mixture with black."""

    op: Literal["brightness"] = "brightness"
    enhancer = ImageEnhance.Brightness


class Contrast(_Enhanced):
    """Distance from the mean luma of the picture, a whole level, times a factor."""

    op: Literal["contrast"] = "contrast"
    enhancer = ImageEnhance.Contrast


class Saturation(_Enhanced):
    """Distance of each pixel from its luma times a factor; 0 is gray. Gray pictures do not change."""

    op: Literal["saturation"] = "saturation"
    enhancer = ImageEnhance.Color


class Sharpness(_Enhanced):
    """Distance from the smoothed picture times a factor; below 1 it blurs.

    Pillow's ``SMOOTH`` (3 x 3, weights 1 and 5 in the middle) keeps the outermost pixels.
    """

    op: Literal["sharpness"] = "sharpness"
    enhancer = ImageEnhance.Sharpness


class Hue(_Change):
    """The hue of each pixel, turned in Pillow's HSV of 8 bit by whole steps of 1/256. Gray pictures do not change."""

    op: Literal["hue"] = "hue"
    turns: float = Field(ge=-0.5, le=0.5)

    @property
    def steps(self) -> int:
        """Of 1/256 turn, 0 to 255: as torchvision's ``adjust_hue`` ``int(turns * 255)``."""
        return int(self.turns * 255) % 256

    def on_image(self, image: Image.Image) -> Image.Image:
        """By ``steps``."""
        if image.mode == "L":
            return image
        hsv = np.array(image.convert("HSV"))
        # What is added wraps around, as an angle does.
        hsv[:, :, 0] += np.uint8(self.steps)
        return Image.frombytes("HSV", image.size, hsv.tobytes()).convert("RGB")

    def __str__(self) -> str:
        return f"hue {self.turns:+.3g} turns"


class Blur(_Change):
    """Pillow's ``GaussianBlur``: three box blurs, which come near a Gaussian with this standard deviation in pixels."""

    op: Literal["blur"] = "blur"
    sigma: float = Field(ge=0)

    def cut(self, offset: tuple[float, float], scale: float, size_hw: Size) -> Self:  # noqa: ARG002 (it has no place)
        """See ``_Change.cut``: as wide as what is seen."""
        return self.model_copy(update={"sigma": self.sigma * scale})

    def on_image(self, image: Image.Image) -> Image.Image:
        """The border is repeated outwards."""
        return image.filter(ImageFilter.GaussianBlur(self.sigma))

    def __str__(self) -> str:
        return f"blur {self.sigma:.3g} px"


class Noise(_Change):
    """Gaussian noise, drawn for each value from ``seed``, with a standard deviation of ``sigma`` levels."""

    op: Literal["noise"] = "noise"
    sigma: float = Field(ge=0)
    seed: int = Field(ge=0, lt=2**63)

    def apply(self, pixels: Pixels) -> Pixels:
        """Added in float32, rounded to nearest and clipped."""
        random = np.random.Generator(np.random.Philox(key=self.seed))
        levels = random.standard_normal(pixels.shape, np.float32) * np.float32(self.sigma) + pixels
        rounded: Pixels = np.clip(np.floor(levels + np.float32(0.5)), 0, 255).astype(np.uint8)
        return rounded

    def __str__(self) -> str:
        return f"noise {self.sigma:.3g} levels, seed {self.seed}"


class Jpeg(_Change):
    """The picture written as a JPEG of this quality (libjpeg's scale, 4:2:0) and read again."""

    op: Literal["jpeg"] = "jpeg"
    quality: int = Field(ge=1, le=100)

    def on_image(self, image: Image.Image) -> Image.Image:
        """By Pillow's libjpeg-turbo."""
        file = io.BytesIO()
        image.save(file, "JPEG", quality=self.quality)
        return Image.open(file, formats=["JPEG"])

    def __str__(self) -> str:
        return f"JPEG of quality {self.quality}"


class Posterize(_Change):
    """The highest bits of each level, the others 0."""

    op: Literal["posterize"] = "posterize"
    bits: int = Field(ge=1, le=8)

    def on_image(self, image: Image.Image) -> Image.Image:
        """Pillow's ``ImageOps.posterize``."""
        return ImageOps.posterize(image, self.bits)

    def __str__(self) -> str:
        return f"posterize {self.bits} bits"


class Solarize(_Change):
    """Levels from the threshold on, inverted: 255 minus the level."""

    op: Literal["solarize"] = "solarize"
    threshold: int = Field(ge=0, le=256)

    def on_image(self, image: Image.Image) -> Image.Image:
        """Pillow's ``ImageOps.solarize``."""
        return ImageOps.solarize(image, self.threshold)

    def __str__(self) -> str:
        return f"solarize from {self.threshold}"


class _Plain(_Change):
    """A change without a number, by the function of Pillow's ``ImageOps`` of the same name."""

    op: str

    def on_image(self, image: Image.Image) -> Image.Image:
        """See ``_Change.on_image``."""
        made: Image.Image = getattr(ImageOps, self.op)(image)
        return made

    def __str__(self) -> str:
        return self.op


class AutoContrast(_Plain):
    """Each channel stretched to 0 to 255."""

    op: Literal["autocontrast"] = "autocontrast"


class Equalize(_Plain):
    """Each channel's histogram made even."""

    op: Literal["equalize"] = "equalize"


class Invert(_Plain):
    """255 minus each level."""

    op: Literal["invert"] = "invert"


Fill = Level | tuple[Level, Level, Level]
"""One level for all channels, or those of red, green and blue."""


class Erase(_Change):
    """A rectangle of the canvas, in pixels of it, filled with one colour; three levels are for pictures in colour."""

    op: Literal["erase"] = "erase"
    top: int = Field(ge=0)
    left: int = Field(ge=0)
    height: int = Field(ge=1)
    width: int = Field(ge=1)
    fill: Fill = 0

    def cut(self, offset: tuple[float, float], scale: float, size_hw: Size) -> Self | None:
        """See ``_Change.cut``: in whole pixels of the window."""
        (top, left), (height, width) = offset, size_hw
        first_row, last_row = (round(at * scale - top) for at in (self.top, self.top + self.height))
        first_column, last_column = (round(at * scale - left) for at in (self.left, self.left + self.width))
        first_row, last_row = max(first_row, 0), min(last_row, height)
        first_column, last_column = max(first_column, 0), min(last_column, width)
        if first_row >= last_row or first_column >= last_column:
            return None
        return self.model_copy(
            update={
                "top": first_row,
                "left": first_column,
                "height": last_row - first_row,
                "width": last_column - first_column,
            }
        )

    def apply(self, pixels: Pixels) -> Pixels:
        """On a copy."""
        erased = pixels.copy()
        erased[self.top : self.top + self.height, self.left : self.left + self.width] = self.fill
        return erased

    def __str__(self) -> str:
        return f"erase {self.width}x{self.height} at ({self.left}, {self.top})"


class Background(_Change):
    """What letters stand on, mixed by ``share`` with a tint: four colours at the canvas's corners, evenly between them.

    ``colors`` are RGB at the top left, top right, bottom right and bottom left. The letters' luma is the mean of the
    fewer pixels on one side of N. Otsu's threshold (1979), the ground's that of the others, and a pixel is a letter as
    far as its luma is the letters'. Colours are mixed with white behind darker letters, with black behind lighter ones,
    as much as puts the darkest, or the lightest, at the letters' luma: 1 - share of the contrast is left at least.
    """

    op: Literal["background"] = "background"
    colors: tuple[_Rgb, _Rgb, _Rgb, _Rgb]
    share: float = Field(ge=0, le=1)

    def apply(self, pixels: Pixels) -> Pixels:
        """In float32, rounded to nearest."""
        from onestream.preprocess.cpu.letters import on_background

        return on_background(pixels, np.array(self.colors, np.float32), self.share)

    def __str__(self) -> str:
        shown = " ".join("#" + "".join(f"{level:02x}" for level in color) for color in self.colors)
        return f"background {self.share:.3g} of {shown}"


AnyChange = Annotated[
    Linear
    | Brightness
    | Contrast
    | Saturation
    | Sharpness
    | Hue
    | Blur
    | Noise
    | Jpeg
    | Posterize
    | Solarize
    | AutoContrast
    | Equalize
    | Invert
    | Erase
    | Background,
    Field(discriminator="op"),
]

ByLevel = Brightness | Posterize | Solarize | Invert
BY_LEVEL = get_args(ByLevel)
"""What maps each level by itself, whatever the picture."""


def level_map(change: ByLevel) -> Pixels:
    """What becomes of the levels 0 to 255 by one of ``BY_LEVEL``, uint8 (256,)."""
    return change.apply(np.arange(256, dtype=np.uint8)[None, :, None]).reshape(256)


def recolored(pixels: Pixels, factors: Factors) -> Pixels:
    """``pixels`` (height, width, channels) with the factors of ``Linear`` applied: the specification in NumPy."""
    channels = pixels.shape[2]
    levels = pixels.astype(np.float32)
    out = np.empty_like(pixels)
    for channel in range(channels):
        value = levels[:, :, 0] * factors[channel, 0]
        for source in range(1, channels):
            value = value + levels[:, :, source] * factors[channel, source]
        # Half a level, then cut: rounds to nearest.
        out[:, :, channel] = np.clip(value + factors[channel, channels] + np.float32(0.5), 0, 255).astype(np.uint8)
    return out


def changed(
    pixels: Pixels,
    changes: Sequence[AnyChange],
    *,
    color: Color,
    recolor: Recolor = recolored,
    apply: Apply = lambda pixels, change: change.apply(pixels),
) -> Pixels:
    """Pixels in the definition's ``color`` with changes made to them, one after the other.

    ``recolor`` executes ``Linear``, whose factors are in the definition's order; ``apply`` the others, which work in
    RGB or gray.
    """
    for change in changes:
        if isinstance(change, Linear):
            pixels = recolor(pixels, change.array)
        elif color == "bgr":
            pixels = apply(np.ascontiguousarray(pixels[:, :, ::-1]), change)[:, :, ::-1]
        else:
            pixels = apply(pixels, change)
    return pixels
