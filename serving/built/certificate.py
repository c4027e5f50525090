"""The parity certificate: what the build measured about a definition, on which library versions.

``certificate.json`` lies beside every generated model. But for a network in int8, whose price was measured on one
machine, it holds no time and no machine, so the same definition and versions give the same file. A model refuses to
load beside a certificate of another definition; other versions, under which the figures may not hold, and a certificate
that is missing are only warned about.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from onestream.preprocess import Definition, StampMismatch
from onestream.preprocess.backends.base import ON_CPU, REFERENCE
from onestream.preprocess.backends.table import BACKENDS
from onestream.preprocess.definition import PreprocessingStage
from onestream.serving.engine.quantization import AnyPrice
from onestream.serving.engine.table import CPU_ENGINES

if TYPE_CHECKING:
    from onestream.preprocess.tolerances import Comparison

_DIGITS = 6


class Figures(BaseModel):
    """The difference of images to the reference after one stage, in 8-bit levels; shares are from 0 to 1.

    ``mean`` is the mean over the images, every other figure that of the worst image. ``within`` says whether the
    tolerances table allows every image.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max: float
    mean: float
    percentile_99_9: float
    share_different: float
    share_above_one: float
    within: bool

    @classmethod
    def of(cls, comparisons: Sequence[Comparison]) -> Figures:
        """Sum up the comparisons of at least one image, rounded to six digits after the point."""
        return cls(
            max=round(max(one.max for one in comparisons), _DIGITS),
            mean=round(sum(one.mean for one in comparisons) / len(comparisons), _DIGITS),
            percentile_99_9=round(max(one.percentile_99_9 for one in comparisons), _DIGITS),
            share_different=round(max(one.share_different for one in comparisons), _DIGITS),
            share_above_one=round(max(one.share_above_one for one in comparisons), _DIGITS),
            within=all(one.within for one in comparisons),
        )


class ScalingPrice(BaseModel):
    """What ``decode.dct_scaling`` changes, in 8-bit levels after the last resize, against decoding whole pictures.

    Of the package's photos, each repeated side by side until it is decoded at a fraction. ``max`` is the largest
    difference, ``mean`` that of all values.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max: int
    mean: float


FILE_NAME = "certificate.json"
STAGES: tuple[PreprocessingStage, ...] = ("decode", "resize", "crop", "normalize")

_DISTRIBUTIONS = {
    "onestream": ("onestream",),
    "numpy": ("numpy",),
    "pillow": BACKENDS[REFERENCE].distributions,
    ON_CPU: BACKENDS[ON_CPU].distributions,
    "numba": ("numba",),
    **{name: row.distributions for name, row in CPU_ENGINES.items()},
}


class Certificate(BaseModel):
    """The measured difference of DALI on a CPU to the reference, by stage, over the photos of the package.

    ``versions`` leaves out what is not installed. ``stages`` is empty where DALI could not run, and ``unmeasured`` then
    says why. ``dct_scaling`` is None where the definition decodes whole pictures, or resizes to so many pixels that
    it was not measured. ``quantization`` is the price of a
    network in int8 or bfloat16; None for one in float32.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    definition_digest: str
    versions: dict[str, str]
    photos: int
    stages: dict[PreprocessingStage, Figures] = {}
    unmeasured: str = ""
    dct_scaling: ScalingPrice | None = None
    quantization: AnyPrice | None = None

    @property
    def within(self) -> bool:
        """Whether the tolerances table allows every figure."""
        return all(figures.within for figures in self.stages.values())

    def summary(self) -> str:
        """How well the preprocessing agrees with the reference, in one line."""
        if not self.stages:
            return f"preprocessing was not compared with the reference: {self.unmeasured}"
        worst = max(figures.max for figures in self.stages.values())
        within = "within" if self.within else "outside"
        price = self.dct_scaling
        scaled = f"; dct_scaling changes up to {price.max}, on average {price.mean:g} levels" if price else ""
        if not worst:
            return f"preprocessing equals the reference in every bit on {self.photos} photos{scaled}"
        return (
            f"preprocessing differs from the reference by at most {worst:g} of 255 levels on {self.photos} photos, "
            f"{within} the tolerances{scaled}"
        )

    def text(self) -> str:
        """The content of the file."""
        return self.model_dump_json(indent=2, exclude_none=True) + "\n"


def library_versions() -> dict[str, str]:
    """Versions of the libraries that compute results, by the names that certificates use."""
    return {name: version for name, options in _DISTRIBUTIONS.items() if (version := _version(options))}


def read(folder: Path) -> Certificate | None:
    """The certificate in a model's folder; None where there is none that can be read."""
    try:
        return Certificate.model_validate_json((folder / FILE_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def check(folder: Path, definition: Definition, *, model: str) -> list[str]:
    """The warnings of a model's certificate, one line each; empty where all is well.

    Raises ``StampMismatch`` where it was issued for another definition.
    """
    certificate = read(folder)
    if certificate is None:
        return [f"model {model} has no readable {FILE_NAME}; onestream build writes it"]
    if certificate.definition_digest != definition.digest:
        raise StampMismatch(
            f"model {model}: {FILE_NAME} was issued for definition {certificate.definition_digest[:12]}, the "
            f"definition.json beside it is {definition.digest[:12]}. Build the pipeline again: onestream build"
        )
    warnings = []
    before, now = certificate.versions, library_versions()
    changed = [name for name in _DISTRIBUTIONS if before.get(name) != now.get(name)]
    if changed:
        listed = ", ".join(f"{name} {before.get(name, 'none')} (now {now.get(name, 'none')})" for name in changed)
        warnings.append(f"model {model}: parity was certified with {listed}; measure again: onestream build")
    if certificate.unmeasured:
        warnings.append(f"model {model}: parity was not measured: {certificate.unmeasured}")
    if not certificate.within:
        outside = ", ".join(stage for stage, figures in certificate.stages.items() if not figures.within)
        warnings.append(f"model {model}: its certificate has figures outside the tolerances: {outside}")
    return warnings


def _version(distributions: Sequence[str]) -> str | None:
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
