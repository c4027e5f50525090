"""Makes the samples of a picture's lines: it is decoded whole, as in serving, and the regions are cut of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from onestream.preprocess.backends.base import CpuBackendName, Sample
from onestream.preprocess.compile import compile, compile_from_picture
from onestream.preprocess.definition import WHOLE_PICTURE, Definition
from onestream.preprocess.errors import BadImage, BadSample
from onestream.preprocess.geometry import Quads, Size
from onestream.preprocess.limits import Limits
from onestream.preprocess.operations import Region
from onestream.preprocess.plan import Planner
from onestream.preprocess.quads import cuts
from onestream.preprocess.training.base_loader import Bad
from onestream.preprocess.training.text.files import TextLine
from onestream.preprocess.variation import Vary


class LineMaker:
    """Decodes pictures and makes the samples of their lines. Not thread-safe."""

    def __init__(self, definition: Definition, *, backend: CpuBackendName, limits: Limits) -> None:
        self._limits = limits
        self._decode = compile(WHOLE_PICTURE, backend=backend, limits=limits, max_batch_size=1)
        self._cut = compile_from_picture(definition, backend=backend, limits=limits)

    def make(self, path: Path, lines: Sequence[TextLine], varies: Sequence[Vary] | None = None) -> list[Sample | Bad]:
        """The samples of lines of one picture, or why they are bad; ``varies`` as of ``FromPicture.run``."""
        try:
            data = path.read_bytes()
            checked = self._limits.checked(data)
        except OSError as error:
            return [BadSample(f"the file cannot be read: {error.strerror or error}")] * len(lines)
        except BadImage as error:
            return [error.as_result()] * len(lines)
        (picture,) = self._decode.run([checked])
        if isinstance(picture, BadImage):
            return [picture] * len(lines)
        known, size_hw = lines[0].size_hw, checked.header.oriented_hw
        if size_hw != known:
            changed = BadSample(
                f"the picture has {size_hw[1]}x{size_hw[0]} pixels after its EXIF orientation; when its lines were "
                f"read it had {known[1]}x{known[0]}"
            )
            return [changed] * len(lines)
        return [*self._cut.run(picture, _quads(lines), varies)]

    def close(self) -> None:
        """Release the decoder."""
        self._decode.close()


def sample_widths(definition: Definition, lines: Sequence[TextLine], limits: Limits) -> list[int | BadSample]:
    """The widths of the samples of lines of one picture, in pixels, or why serving would not take them.

    The lines have no problem yet.
    """
    if not lines:
        return []
    region = definition.source
    assert isinstance(region, Region)
    found = cuts(region, _quads(lines), lines[0].size_hw, limits=limits)
    planner, widths = Planner(definition, limits), list[int | BadSample]()
    for possible, (height, width), shorter in zip(found.possible, found.sizes, found.shorter_sides, strict=True):
        if not possible:
            widths.append(BadSample("the line cannot be cut from its picture: it is too large, or nearly a stroke"))
        elif shorter < region.min_side:
            widths.append(
                BadSample(
                    f"the line's shorter side has {shorter:.1f} pixels; the definition's region takes those of "
                    f"{region.min_side:g} or more (min_side)"
                )
            )
        else:
            widths.append(_width(planner, (int(height), int(width))))
    return widths


def _width(planner: Planner, region_hw: Size) -> int | BadSample:
    try:
        return planner(region_hw).canvas_hw[1]
    except BadImage as error:
        return BadSample(str(error))


def _quads(lines: Sequence[TextLine]) -> Quads:
    return np.stack([line.quad for line in lines])
