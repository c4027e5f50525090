"""The allowed difference of each backend to the reference, by stage, with its reason. Tests and parity judge by it.

Differences are in 8-bit levels; normalized output is brought back to levels first. The bounds were measured on photos,
noise and edges in every format (``tests/preprocess/test_parity.py``) and rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from onestream.preprocess.backends.base import BackendName, Device, Sample
from onestream.preprocess.definition import Definition, PreprocessingStage
from onestream.preprocess.operations import Patches

Source = Literal["plain", "converted"]
"""*plain* is stored as 8-bit gray or RGB. *converted* is not: CMYK JPEG, 16-bit PNG and TIFF, palette TIFF."""


class Bounds(Protocol):
    """What judges a difference: an entry of this table, or of another one."""

    @property
    def text(self) -> str:
        """The bounds in words that follow *allowed*."""
        ...

    def allows(self, *, highest: float, mean: float, different: float, above_one: float) -> bool:
        """Whether a largest and a mean difference in levels, and shares (0 to 1), are within the bounds."""
        ...


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The allowed difference of one backend after one stage, the stages before it included.

    ``max_level`` bounds every value; ``share_different`` and ``share_above_one`` bound the shares, 0 to 1, of values
    that differ at all and by more than one level. ``hq``: with the option ``resize: hq`` of cvcuda.
    """

    backend: BackendName
    stage: PreprocessingStage
    source: Source
    max_level: float
    share_different: float
    share_above_one: float
    reason: str
    device: Device = "cpu"
    hq: bool = False

    @property
    def text(self) -> str:
        """See ``Bounds.text``."""
        return (
            f"for 8-bit files are {self.max_level:g} at most, {self.share_different:.0%} of values different, "
            f"{self.share_above_one:.0%} above 1"
        )

    def allows(self, *, highest: float, mean: float, different: float, above_one: float) -> bool:  # noqa: ARG002
        """See ``Bounds.allows``; the mean follows from the shares."""
        return highest <= self.max_level and different <= self.share_different and above_one <= self.share_above_one


TOLERANCES: tuple[Tolerance, ...] = (
    Tolerance("dali", "decode", "plain", 0, 0, 0, "the same libjpeg-turbo, libpng and libwebp arithmetic as Pillow"),
    Tolerance(
        "dali", "decode", "converted", 2, 1, 0.01,
        "Pillow keeps the high byte of 16 bit and of palettes where nvImageCodec rounds: one level. CMYK is multiplied "
        "out with other rounding, which rarely makes two",
    ),
    Tolerance("dali", "region", "plain", 0, 0, 0, "a box is copied; a quad is rectified in the same whole numbers"),
    Tolerance(
        "dali", "region", "converted", 4, 1, 0.05,
        "the levels of the conversion, which the negative lobes of bicubic make 1.6 times as many",
    ),
    Tolerance(
        "dali", "resize", "plain", 1, 0.5, 0,
        "DALI's own resize, in unmodified containers and in the proxy, keeps fractions between its passes; the "
        "compiled one equals Pillow's in every bit",
    ),
    Tolerance(
        "dali", "resize", "converted", 4, 1, 0.05,
        "the levels of the conversion, amplified by the negative lobes of bicubic and lanczos",
    ),
    Tolerance(
        "dali", "crop", "plain", 1, 0.5, 0,
        "as resize; the filter is computed from the window's corners inside the decoded part",
    ),
    Tolerance("dali", "crop", "converted", 4, 1, 0.05, "as resize; nothing is added"),
    Tolerance("dali", "normalize", "plain", 1, 0.5, 0, "as crop: a table holds the reference's own 256 values"),
    Tolerance("dali", "normalize", "converted", 4, 1, 0.05, "as crop"),
)  # fmt: skip

_GPU_DECODE = (
    "nvJPEG and libjpeg-turbo round the inverse transform, the upsampling of chroma and the conversion to RGB each by "
    "themselves: a level each, of which the conversion to blue makes almost two. Other formats are decoded on the CPU"
)
_LIBRARY_RESIZE = (
    "the levels of the decoder, averaged; the level of the filter, which keeps fractions between its passes; and up to "
    "ten in the outermost pixels of an uncropped image, where Pillow renormalizes and the GPU repeats the border"
)
_EXACT_RESIZE = (
    "the levels of the decoder and nothing else, which bilinear does not enlarge; the negative lobes of bicubic make "
    "11 of 6 at most, those of lanczos 16. What is no JPEG is equal in every bit"
)
_CONVERTED = "as DALI on a CPU: the same library decodes these on the CPU, and the resize adds nothing"
_Bounds = tuple[tuple[PreprocessingStage, float, float, str], ...]
_LIBRARY_BOUNDS: _Bounds = (
    ("decode", 6, 0.2, _GPU_DECODE),
    ("resize", 16, 0.2, _LIBRARY_RESIZE),
    ("crop", 16, 0.2, "as resize; nothing is added"),
    ("normalize", 16.01, 0.2, "as crop; float32 is rounded in another order"),
)
_EXACT_BOUNDS: _Bounds = (
    ("decode", 6, 0.2, _GPU_DECODE),
    ("resize", 16, 0.2, _EXACT_RESIZE),
    ("crop", 16, 0.2, "as resize; nothing is added"),
    ("normalize", 16, 0.2, "as crop: a table holds the reference's own 256 values"),
)
_EXACT_CONVERTED: _Bounds = (
    ("decode", 2, 0.01, _CONVERTED),
    ("resize", 4, 0.05, _CONVERTED),
    ("crop", 4, 0.05, _CONVERTED),
    ("normalize", 4, 0.05, _CONVERTED),
)
_GPU: tuple[tuple[BackendName, bool, Source, _Bounds], ...] = (
    ("cvcuda", False, "plain", _EXACT_BOUNDS),
    ("cvcuda", False, "converted", _EXACT_CONVERTED),
    ("cvcuda", True, "plain", _LIBRARY_BOUNDS),
    ("cvcuda", True, "converted", _LIBRARY_BOUNDS),
    ("dali", False, "plain", _LIBRARY_BOUNDS),
    ("dali", False, "converted", _LIBRARY_BOUNDS),
)

TOLERANCES += tuple(
    Tolerance(backend, stage, source, most, 1, above_one, reason, device="gpu", hq=hq)
    for backend, hq, source, bounds in _GPU
    for stage, most, above_one, reason in bounds
)
"""One entry for every backend, device, stage and source, and of cvcuda one more for ``resize: hq``.

*region* takes the place of *decode* in the later stages of a cascade, on a CPU.
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of a sample to the reference's, in levels, and whether the table allows it."""

    max: float
    mean: float
    percentile_99_9: float
    share_different: float
    share_above_one: float
    within: bool


def tolerance(
    backend: BackendName,
    stage: PreprocessingStage,
    source: Source = "plain",
    device: Device = "cpu",
    *,
    hq: bool = False,
) -> Tolerance:
    """The entry of the table. Raises ``KeyError`` where there is none."""
    for entry in TOLERANCES:
        if (entry.backend, entry.stage, entry.source, entry.device, entry.hq) == (backend, stage, source, device, hq):
            return entry
    resized = " with resize 'hq'" if hq else ""
    raise KeyError(f"no tolerance for backend {backend!r}{resized} on {device!r}, stage {stage!r}, source {source!r}")


def compare(
    reference: Sample,
    other: Sample,
    *,
    definition: Definition,
    stage: PreprocessingStage,
    backend: BackendName,
    source: Source = "plain",
    device: Device = "cpu",
    hq: bool = False,
) -> Comparison:
    """Compare a backend's sample with the reference's, both as ``definition.stage(stage)`` gives them.

    Raises ``ValueError`` where shape or dtype differ: geometry has no tolerance.
    """
    if reference.shape != other.shape or reference.dtype != other.dtype:
        raise ValueError(
            f"{backend} gives {other.dtype}{other.shape} after {stage}, "
            f"the reference {reference.dtype}{reference.shape}"
        )
    allowed = tolerance(backend, stage, source, device, hq=hq)
    return judge(reference, other, definition=definition, stage=stage, allowed=allowed)


def judge(
    reference: Sample, other: Sample, *, definition: Definition, stage: PreprocessingStage, allowed: Bounds | None
) -> Comparison:
    """Compare two samples of one shape and dtype after a stage; without bounds all is allowed."""
    level_size = _level_size(definition, stage)
    difference = np.abs(other.astype(np.float64) - reference.astype(np.float64)) * level_size
    if reference.dtype.kind == "f":
        # Both samples are rounded to their dtype, so that a whole number of levels measures as nearly that.
        whole, rounding = np.rint(difference), 2 * np.finfo(reference.dtype).eps * np.abs(reference).max() * level_size
        difference = np.where(np.abs(difference - whole) <= rounding, whole, difference)
    highest, mean = float(difference.max(initial=0)), float(difference.mean())
    different, above_one = float((difference > 0).mean()), float((difference > 1).mean())
    return Comparison(
        max=highest,
        mean=mean,
        percentile_99_9=float(np.percentile(difference, 99.9)),
        share_different=different,
        share_above_one=above_one,
        within=allowed is None or allowed.allows(highest=highest, mean=mean, different=different, above_one=above_one),
    )


def _level_size(definition: Definition, stage: PreprocessingStage) -> Sample | float:
    """Levels in a difference of 1 of the output, broadcast along its channels."""
    if stage != "normalize" or definition.normalize is None:
        return 1.0
    levels = np.asarray(definition.normalize.std) * definition.normalize.scale
    if (patches := definition.for_processor) is not None:
        if not isinstance(patches, Patches) or patches.layout == "image":
            return levels[:, None, None]
        of_channel = patches.temporal * patches.patch**2
        row = np.repeat(levels, of_channel) if patches.layout == "CTHW" else np.tile(levels, of_channel)
        return row.reshape(patches.row_shape(len(levels)))
    return levels[:, None, None] if definition.network_input.layout == "NCHW" else levels
