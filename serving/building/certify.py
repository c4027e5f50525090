"""Measures how far DALI on a CPU is from the reference, over the photos of the package, and writes certificates."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import numpy as np
from PIL import Image

from onestream.preprocess import (
    WHOLE_PICTURE,
    BackendMissing,
    BadImage,
    CannotCompile,
    Definition,
    Limits,
    compile,
    compile_from_picture,
)
from onestream.preprocess.backends.base import ON_CPU, Sample
from onestream.preprocess.definition import PreprocessingStage
from onestream.preprocess.geometry import Quads
from onestream.preprocess.moves import Resize
from onestream.preprocess.operations import Region
from onestream.preprocess.quads import cuts
from onestream.preprocess.tolerances import compare
from onestream.serving.built.certificate import (
    FILE_NAME,
    Certificate,
    Figures,
    ScalingPrice,
    library_versions,
    read,
)
from onestream.serving.engine.quantization import AnyPrice
from onestream.serving.photos import bundled_photos

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
        dct_scaling=_price_of_scaling(definition, photos),
    )


def install(
    definition: Definition, folders: Sequence[Path], *, quantization: AnyPrice | None = None
) -> tuple[Certificate, list[Path]]:
    """Put the certificate of a definition and its network into models' folders; returns it and the files that changed.

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
    return found, written


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


def _price_of_scaling(definition: Definition, photos: Sequence[bytes]) -> ScalingPrice | None:
    resize = definition.resize
    if not definition.scales_dct or resize is None:
        return None
    scaled = definition.stage("resize")
    source = scaled.source.model_copy(update={"dct_scaling": False})
    whole = scaled.model_copy(update={"operations": (source, *scaled.operations[1:])})
    values, total, most = 0, 0, 0
    try:
        for photo in photos:
            file = _repeated(photo, resize)
            (one,), (other,) = compile(scaled).run([file]), compile(whole).run([file])
            if isinstance(one, BadImage) or isinstance(other, BadImage):
                return None
            difference = np.abs(one.astype(np.int16) - other)
            values, total, most = values + one.size, total + int(difference.sum()), max(most, int(difference.max()))
    except BadImage:
        return None
    return ScalingPrice(max=most, mean=round(total / values, 3))


def _repeated(photo: bytes, resize: Resize) -> bytes:
    """A JPEG of a photo side by side and below itself, often enough that the resize decodes it at a fraction.

    Enlarged it would have no detail to lose. Raises ``BadImage`` where it would have too many pixels.
    """
    pixels = np.asarray(Image.open(io.BytesIO(photo)))
    height, width, _ = pixels.shape
    times = next(n for n in count(1) if resize.decoding_factor((height * n, width * n)) > 1)
    Limits().check_size(height * times, width * times)
    file = io.BytesIO()
    Image.fromarray(np.tile(pixels, (times, times, 1))).save(file, "JPEG", quality=90)
    return file.getvalue()


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
