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

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from onestream.preprocess import (
    WHOLE_PICTURE,
    BackendMissing,
    BadImage,
    CannotCompile,
    Definition,
    Limits,
    StampMismatch,
    compile,
    compile_from_picture,
)
from onestream.preprocess.backends.base import ON_CPU, REFERENCE, Sample
from onestream.preprocess.backends.table import BACKENDS
from onestream.preprocess.definition import PreprocessingStage
from onestream.preprocess.geometry import Quads
from onestream.preprocess.operations import Region
from onestream.preprocess.quads import cuts
from onestream.preprocess.tolerances import Comparison, compare
from onestream.serving.engine.quantization import Quantization
from onestream.serving.engine.table import ENGINES
from onestream.serving.photos import bundled_photos
from onestream.serving.pipeline import CpuOptions

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


FILE_NAME = "certificate.json"
STAGES: tuple[PreprocessingStage, ...] = ("decode", "resize", "crop", "normalize")

_REGIONS = np.array(
    [
        [[0.1, 0.2], [0.8, 0.2], [0.8, 0.9], [0.1, 0.9]],
        [[0.2, 0.3], [0.9, 0.45], [0.87, 0.6], [0.17, 0.45]],
        [[0.4, 0.05], [0.55, 0.1], [0.5, 0.95], [0.42, 0.9]],
    ],
    np.float32,
)
"""Of each photo, as shares of its width and height: a box, a line that rises, a high one in perspective."""
_REGION_LIMITS = Limits(max_pixels=1_000_000)
"""The reference takes seconds for a larger region, such as a wide margin makes."""

_DISTRIBUTIONS = {
    "onestream": ("onestream",),
    "numpy": ("numpy",),
    "pillow": BACKENDS[REFERENCE].distributions,
    ON_CPU: BACKENDS[ON_CPU].distributions,
    "numba": ("numba",),
    CpuOptions().engine: ENGINES[CpuOptions().engine].distributions,
}


class Certificate(BaseModel):
    """The measured difference of DALI on a CPU to the reference, by stage, over the photos of the package.

    ``versions`` leaves out what is not installed. ``stages`` is empty where DALI could not run, and ``unmeasured`` then
    says why. ``quantization`` is the price of a network in int8; None for one in float32.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    definition_digest: str
    versions: dict[str, str]
    photos: int
    stages: dict[PreprocessingStage, Figures] = {}
    unmeasured: str = ""
    quantization: Quantization | None = None

    @property
    def within(self) -> bool:
        """Whether the tolerances table allows every figure."""
        return all(figures.within for figures in self.stages.values())

    def text(self) -> str:
        """The content of the file."""
        return self.model_dump_json(indent=2, exclude_none=True) + "\n"


def library_versions() -> dict[str, str]:
    """Versions of the libraries that compute results, by the names that certificates use."""
    return {name: version for name, options in _DISTRIBUTIONS.items() if (version := _version(options))}


def issue(definition: Definition) -> Certificate:
    """Measure a definition, which takes about a second."""
    photos = list(bundled_photos().values())
    versions = library_versions()
    stages, unmeasured = {}, ""
    try:
        stages = {stage: _measure(definition, stage, photos) for stage in definition.stages}
    except (BackendMissing, CannotCompile, BadImage) as error:
        unmeasured = str(error)
    return Certificate(
        definition_digest=definition.digest,
        versions=versions,
        photos=len(photos),
        stages=stages,
        unmeasured=unmeasured,
    )


def read(folder: Path) -> Certificate | None:
    """The certificate in a model's folder; None where there is none that can be read."""
    try:
        return Certificate.model_validate_json((folder / FILE_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def install(definition: Definition, folders: Sequence[Path], *, quantization: Quantization | None = None) -> list[Path]:
    """Put the certificate of a definition and its network into models' folders; returns the files that changed.

    A certificate that is there and still true is kept, and nothing is measured again.
    """
    found = read(folders[0])
    if found is None or found.definition_digest != definition.digest or found.versions != library_versions():
        found = issue(definition)
    found = found.model_copy(update={"quantization": quantization})
    written = []
    for path in (folder / FILE_NAME for folder in folders):
        if not path.exists() or path.read_text() != found.text():
            path.write_text(found.text())
            written.append(path)
    return written


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


def _measure(definition: Definition, stage: PreprocessingStage, photos: Sequence[bytes]) -> Figures:
    """Raises ``BadImage`` where the definition refuses a photo, as one that pads to less than the photo's size does."""
    cut = definition.stage(stage)
    comparisons = []
    for one, other in zip(*_samples(cut, photos), strict=True):
        if isinstance(one, BadImage):
            raise one
        if isinstance(other, BadImage):
            raise other
        comparisons.append(compare(one, other, definition=cut, stage=stage, backend=ON_CPU))
    return Figures.of(comparisons)


def _samples(definition: Definition, photos: Sequence[bytes]) -> tuple[list[Sample | BadImage], ...]:
    """What the reference and DALI on a CPU make of photos, or of ``_REGIONS`` of these.

    Raises ``BadImage`` where none of the regions is small enough.
    """
    if definition.region is None:
        reference, dali = compile(definition), compile(definition, backend=ON_CPU, max_batch_size=len(photos))
        try:
            return reference.run(photos), dali.run(photos)
        finally:
            dali.close()
    decoded = [one for one in compile(WHOLE_PICTURE).run(photos) if not isinstance(one, BadImage)]
    regions = [_regions_of(picture, definition.region) for picture in decoded]
    if not any(map(len, regions)):
        raise BadImage(
            "too_many_pixels",
            f"with a margin of {definition.region.margin:g}, regions of the package's photos have more than "
            f"{_REGION_LIMITS.max_pixels} pixels",
        )
    return tuple(
        [sample for picture, quads in zip(decoded, regions, strict=True) for sample in backend.run(picture, quads)]
        for backend in (compile_from_picture(definition), compile_from_picture(definition, backend=ON_CPU))
    )


def _regions_of(picture: Sample, region: Region) -> Quads:
    """Those of ``_REGIONS`` that can be cut of a photo, within ``_REGION_LIMITS``."""
    quads = _REGIONS * np.array(picture.shape[1::-1], np.float32)
    return quads[cuts(region, quads, (picture.shape[0], picture.shape[1]), limits=_REGION_LIMITS).possible]


def _version(distributions: Sequence[str]) -> str | None:
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
