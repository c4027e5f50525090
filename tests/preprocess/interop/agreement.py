"""Photos of many shapes, and whether a definition gives for them what the library gave from which it was imported."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import encode
from PIL import Image
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.preprocess import BadImage, CannotImport, Definition, compile
from onestream.preprocess.tolerances import Comparison, compare
from onestream.serving.pipeline import Pipeline

ROOT = Path(__file__).parents[3]
SIZES = ((188, 250), (165, 126), (49, 320), (265, 33), (113, 114), (224, 224), (64, 48))
"""(height, width): landscape, portrait, narrow, square, odd, and smaller than what networks take."""


def noise(height: int, width: int) -> Image.Image:
    """Random pixels."""
    return Image.fromarray(np.random.default_rng(height * 65536 + width).integers(0, 256, (height, width, 3), np.uint8))


@cache
def pictures() -> tuple[tuple[bytes, Image.Image], ...]:
    """Files and what Pillow decodes of them: a photo of the examples, and parts of it of every size."""
    files = [(ROOT / "examples" / "photos" / "cat.jpg").read_bytes()]
    photos = [Image.open(io.BytesIO(data)).convert("RGB") for data in files]
    for height, width in SIZES:
        photo = photos[0]
        scale = max(height / photo.height, width / photo.width, 0.5)
        larger = photo.resize((round(photo.width * scale) + 1, round(photo.height * scale) + 1))
        photos.append(larger.crop((1, 1, 1 + width, 1 + height)))
        files.append(encode(photos[-1], "PNG"))
    return tuple(zip(files, photos, strict=True))


def printed_pipeline(folder: Path, source: str) -> Pipeline:
    """The pipeline file that ``onestream import`` prints for a source, read."""
    result = CliRunner().invoke(app, ["import", source])
    assert result.exit_code == 0, result.output
    # The first names the source.
    assert all(len(line) <= 120 for line in result.stdout.splitlines()[1:] if line.startswith("#"))
    (folder / "printed.yaml").write_text(result.stdout, encoding="utf-8")
    return Pipeline.from_file(folder / "printed.yaml")


def differences(
    definition: Definition, source: Callable[[Image.Image], Any], *, backend: str, most: int | None = None
) -> list[Comparison]:
    """How far a backend's output is from the source's, picture by picture, judged as DALI is against the reference.

    Raises ``ValueError`` where a shape differs.
    """
    files, photos = zip(*pictures()[:most], strict=True)
    found = []
    for image, seen in zip(photos, compile(definition, backend=backend).run(files), strict=True):
        assert not isinstance(seen, BadImage), seen
        expected = np.asarray(source(image))
        found.append(compare(expected, seen, definition=definition, stage="normalize", backend="dali"))
    return found


def assert_equal(definition: Definition, source: Callable[[Image.Image], Any], *, most: int | None = None) -> None:
    """The reference gives the source's pixels, up to float32's last bits.

    That DALI is within its tolerance of the reference, whatever the definition, ``test_parity`` tells.
    """
    # A thousandth of a level is some ten units in the last place of a float32.
    found = differences(definition, source, backend="reference", most=most)
    assert max(comparison.max for comparison in found) < 0.001


def assert_refused(named: Iterable[str], read: Callable[..., Any], *source: Any) -> None:
    """It cannot be imported, and what is said names all of these."""
    with pytest.raises(CannotImport) as caught:
        read(*source)
    for part in named:
        assert part in str(caught.value)
