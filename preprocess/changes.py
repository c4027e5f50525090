"""Changes of a picture's levels that augmentation draws: values that say what happens, and Pillow and NumPy that do it.

The reference runs this code, DALI on a CPU compiled loops of the same arithmetic where ``cpu.levels`` has them, so that
equal pixels stay equal. Pixels are uint8 (height, width, channels), RGB or gray. *Pillow's* means that the arithmetic
is what torchvision runs on PIL images.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

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
_OnImage = Callable[[Image.Image], Image.Image]
_Rgb = tuple[Level, Level, Level]
CHANGES_ON_GPU = (
    "linear", "brightness", "contrast", "saturation", "hue", "sharpness", "posterize", "solarize", "autocontrast",
    "equalize", "invert", "erase",
)  # fmt: skip
"""Those that kernels on a GPU can do (``onestream.preprocess.cuda.changes``), by their names."""
LUMA = (0.299, 0.587, 0.114)
"""Of RGB (ITU-R 601)."""


class _Change(BaseModel):
    """Base of the changes: a frozen value, equal by content, that is written as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def apply(self, pixels: Pixels) -> Pixels:
        """The changed pixels, in an array of their own or the same one where nothing changes."""
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

    def __str__(self) -> str:
        return f"{type(self).__name__.lower()} {self.factor:.3g}"


class Brightness(_Enhanced):
    """Levels times a factor, cut to whole ones."""

    op: Literal["brightness"] = "brightness"

    def apply(self, pixels: Pixels) -> Pixels:
        """Mixed with black."""
        return _by_pillow(pixels, lambda image: ImageEnhance.Brightness(image).enhance(self.factor))


class Contrast(_Enhanced):
    """Distance from the mean luma of the picture times a factor."""

    op: Literal["contrast"] = "contrast"

    def apply(self, pixels: Pixels) -> Pixels:
        """Mixed with a picture of the mean luma, a whole level."""
        return _by_pillow(pixels, lambda image: ImageEnhance.Contrast(image).enhance(self.factor))


class Saturation(_Enhanced):
    """Distance of each pixel from its luma times a factor; 0 is gray. Gray pictures do not change."""

    op: Literal["saturation"] = "saturation"

    def apply(self, pixels: Pixels) -> Pixels:
        """Mixed with its luma."""
        if pixels.shape[2] == 1:
            return pixels
        return _by_pillow(pixels, lambda image: ImageEnhance.Color(image).enhance(self.factor))


class Sharpness(_Enhanced):
    """Distance from the smoothed picture (3 x 3, weights 1 and 5 in the middle) times a factor; below 1 it blurs."""

    op: Literal["sharpness"] = "sharpness"

    def apply(self, pixels: Pixels) -> Pixels:
        """Mixed with itself after Pillow's ``SMOOTH``, which keeps the outermost pixels."""
        return _by_pillow(pixels, lambda image: ImageEnhance.Sharpness(image).enhance(self.factor))


class Hue(_Change):
    """The hue of each pixel, turned in Pillow's HSV of 8 bit by whole steps of 1/256. Gray pictures do not change."""

    op: Literal["hue"] = "hue"
    turns: float = Field(ge=-0.5, le=0.5)

    @property
    def steps(self) -> int:
        """Of 1/256 turn, 0 to 255: as torchvision's ``adjust_hue`` ``int(turns * 255)``."""
        return int(self.turns * 255) % 256

    def apply(self, pixels: Pixels) -> Pixels:
        """By ``steps``."""
        if pixels.shape[2] == 1:
            return pixels
        hsv = np.array(Image.fromarray(pixels).convert("HSV"))
        # What is added wraps around, as an angle does.
        hsv[:, :, 0] += np.uint8(self.steps)
        height, width = hsv.shape[:2]
        return np.array(Image.frombytes("HSV", (width, height), hsv.tobytes()).convert("RGB"))

    def __str__(self) -> str:
        return f"hue {self.turns:+.3g} turns"


class Blur(_Change):
    """Pillow's ``GaussianBlur``: three box blurs, which come near a Gaussian with this standard deviation in pixels."""

    op: Literal["blur"] = "blur"
    sigma: float = Field(ge=0)

    def cut(self, offset: tuple[float, float], scale: float, size_hw: Size) -> Self:  # noqa: ARG002 (it has no place)
        """See ``_Change.cut``: as wide as what is seen."""
        return self.model_copy(update={"sigma": self.sigma * scale})

    def apply(self, pixels: Pixels) -> Pixels:
        """The border is repeated outwards."""
        return _by_pillow(pixels, lambda image: image.filter(ImageFilter.GaussianBlur(self.sigma)))

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

    def apply(self, pixels: Pixels) -> Pixels:
        """By Pillow's libjpeg-turbo."""
        return _by_pillow(pixels, self._read_again)

    def _read_again(self, image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=self.quality)
        return Image.open(file, formats=["JPEG"])

    def __str__(self) -> str:
        return f"JPEG of quality {self.quality}"


class Posterize(_Change):
    """The highest bits of each level, the others 0."""

    op: Literal["posterize"] = "posterize"
    bits: int = Field(ge=1, le=8)

    def apply(self, pixels: Pixels) -> Pixels:
        """Pillow's ``ImageOps.posterize``."""
        return _by_pillow(pixels, lambda image: ImageOps.posterize(image, self.bits))

    def __str__(self) -> str:
        return f"posterize {self.bits} bits"


class Solarize(_Change):
    """Levels from the threshold on, inverted: 255 minus the level."""

    op: Literal["solarize"] = "solarize"
    threshold: int = Field(ge=0, le=256)

    def apply(self, pixels: Pixels) -> Pixels:
        """Pillow's ``ImageOps.solarize``."""
        return _by_pillow(pixels, lambda image: ImageOps.solarize(image, self.threshold))

    def __str__(self) -> str:
        return f"solarize from {self.threshold}"


class _Plain(_Change):
    """A change without a number."""

    def __str__(self) -> str:
        return type(self).__name__.lower()


class AutoContrast(_Plain):
    """Each channel stretched to 0 to 255."""

    op: Literal["autocontrast"] = "autocontrast"

    def apply(self, pixels: Pixels) -> Pixels:
        """Pillow's ``ImageOps.autocontrast``."""
        return _by_pillow(pixels, ImageOps.autocontrast)


class Equalize(_Plain):
    """Each channel's histogram made even."""

    op: Literal["equalize"] = "equalize"

    def apply(self, pixels: Pixels) -> Pixels:
        """Pillow's ``ImageOps.equalize``."""
        return _by_pillow(pixels, ImageOps.equalize)


class Invert(_Plain):
    """255 minus each level."""

    op: Literal["invert"] = "invert"

    def apply(self, pixels: Pixels) -> Pixels:
        """In 8 bit."""
        return np.subtract(255, pixels, dtype=np.uint8)


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
        is_gray = pixels.shape[2] == 1
        luma = pixels[:, :, 0] if is_gray else np.asarray(Image.fromarray(pixels).convert("L"))
        letters, ground = _letters_and_ground(luma)
        down, across = ((np.arange(side, dtype=np.float32)[:, None] + 0.5) / side for side in luma.shape)
        one, two, three, four = np.array(self.colors, np.float32)
        top, bottom = one + (two - one) * across, four + (three - four) * across
        tint = top + (bottom - top) * down[:, None]
        if is_gray:
            tint = (tint * np.array(LUMA, np.float32)).sum(axis=2, keepdims=True)
        tint = (
            tint * np.float32(letters / 255) if letters > ground else 255 - (255 - tint) * np.float32(1 - letters / 255)
        )
        of_ground = np.float32(1) - (luma - np.float32(ground)) / np.float32((letters - ground) or 1)
        mixed = np.clip(of_ground, 0, 1)[:, :, None] * np.float32(self.share)
        changed: Pixels = np.floor(pixels + mixed * (tint - pixels) + np.float32(0.5)).astype(np.uint8)
        return changed

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
BY_LEVEL = (Brightness, Posterize, Solarize, Invert)
"""What maps each level by itself, whatever the picture."""


def level_map(change: ByLevel) -> Pixels:
    """What becomes of the levels 0 to 255 by one of ``BY_LEVEL``, uint8 (256,)."""
    return change.apply(np.arange(256, dtype=np.uint8)[None, :, None]).reshape(256)


def applied(pixels: Pixels, change: AnyChange) -> Pixels:
    """``pixels`` with a change made to them: the specification, by Pillow and NumPy."""
    return change.apply(pixels)


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
    apply: Apply = applied,
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


def _by_pillow(pixels: Pixels, change: _OnImage) -> Pixels:
    image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    made = np.asarray(change(image))
    return made if made.ndim == 3 else made[:, :, None]


def _letters_and_ground(luma: Pixels) -> tuple[float, float]:
    """The mean lumas of the fewer pixels and of the others, by Otsu's threshold; equal where there is one luma."""
    counts = np.bincount(luma.ravel(), minlength=256)
    below, sums = np.cumsum(counts), np.cumsum(counts * np.arange(256))
    above, total = below[-1] - below, sums[-1]
    divides = np.flatnonzero((below > 0) & (above > 0))
    if not len(divides):
        return float(total / below[-1]), float(total / below[-1])
    means, others = sums[divides] / below[divides], (total - sums[divides]) / above[divides]
    best = int(np.argmax(below[divides] * above[divides] * (means - others) ** 2.0))
    low, high = float(means[best]), float(others[best])
    return (low, high) if below[divides[best]] <= above[divides[best]] else (high, low)
