"""The photo set: different real photos as JPEGs of some sizes, the same bytes on every run.

The photos come inside the wheels of scikit-image, scikit-learn and matplotlib, so nothing is downloaded. Each source
gives two pictures per size: *whole*, the largest centred part of the right shape, and *near*, a mirrored part 0.8 as
large from a corner. All sources are smaller than 1920×1080, and enlarging leaves a picture smoother than a camera's,
with a smaller file that decodes faster; so grain is added from that size on, until a file has the bytes of a camera's:
about 0.4 MB at 1920×1080 and 1.9 MB at 4032×3024, quality 90.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import PIL
from PIL import Image

from onestream.measure.load.perf_analyzer import input_data
from onestream.wire.install import install_command

Size = Literal["500x375", "1920x1080", "4032x3024", "640x480", "mixed"]
SIZES: tuple[Size, ...] = ("500x375", "1920x1080")
"""Those of the photos; pictures with text have another, and *mixed* ones each their own."""
PHONE: Size = "4032x3024"
"""What a phone takes: 12 megapixels."""
QUALITY = 90
SEED = 20

_MIXED_SIDES = ((320, 240), (1921, 1081))
"""The least, and one more than the largest, width and height of *mixed*."""
_GRAIN_SIGMA = 2.5
_GRAIN_ABOVE_PIXELS = 1_000_000
_NEAR = 0.8
_SMALLEST_PART = 0.6
_RECIPE = 2
_SOURCES = {
    "skimage/data": (
        "chelsea.png",
        "coffee.png",
        "hubble_deep_field.jpg",
        "motorcycle_left.png",
        "motorcycle_right.png",
        "retina.jpg",
        "rocket.jpg",
    ),
    "sklearn/datasets/images": ("china.jpg", "flower.jpg"),
    "matplotlib/mpl-data/sample_data": ("grace_hopper.jpg",),
}


class PhotosMissing(Exception):
    """A package that carries photos, or what pictures are made of, is not installed."""


@dataclass(frozen=True, slots=True)
class Photo:
    """One JPEG file of the set. ``sha256`` is of its bytes, hexadecimal."""

    name: str
    size: Size
    source: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class PhotoSet:
    """The photos of one size, and the same photos as an input file of perf_analyzer."""

    photos: tuple[Photo, ...]
    contents: tuple[bytes, ...]
    perf_analyzer_input: Path


class Drawn(NamedTuple):
    """A picture that was made: its name, that of the picture it was made from, and its bytes."""

    name: str
    source: str
    content: bytes


def photo_set(size: Size, *, folder: Path, sources: Sequence[Path] | None = None) -> PhotoSet:
    """The photos of one size; see ``kept``.

    ``sources`` are image files to make them from; None takes those of the installed packages. Raises ``PhotosMissing``
    naming the command that installs them.
    """
    files = _source_files() if sources is None else list(sources)
    made_by = {
        "recipe": _RECIPE,
        "sources": [file.name for file in files],
        "pillow": PIL.__version__,
        "numpy": np.__version__,
    }
    return kept(size, folder / size, made_by, lambda: _make(size, files))


def kept(size: Size, own: Path, made_by: Mapping[str, Any], make: Callable[[], Sequence[Drawn]]) -> PhotoSet:
    """The pictures in a folder, made where they are missing, their bytes are not the manifest's, or that says that they
    were made by something else.
    """
    manifest = own / "manifest.json"
    photos = _read(manifest, made_by)
    if photos is None:
        own.mkdir(parents=True, exist_ok=True)
        drawn = make()
        for one in drawn:
            (own / one.name).write_bytes(one.content)
        photos = tuple(Photo(d.name, size, d.source, len(d.content), _sha256(d.content)) for d in drawn)
        (own / "perf_analyzer.json").write_text(input_data([one.content for one in drawn]))
        manifest.write_text(json.dumps({"made_by": made_by, "photos": [asdict(p) for p in photos]}, indent=1) + "\n")
    return PhotoSet(photos, tuple((own / p.name).read_bytes() for p in photos), own / "perf_analyzer.json")


def _read(manifest: Path, made_by: Mapping[str, Any]) -> tuple[Photo, ...] | None:
    try:
        found = json.loads(manifest.read_text())
        if found["made_by"] != made_by:
            return None
        photos = tuple(Photo(**entry) for entry in found["photos"])
        contents = [(manifest.parent / photo.name).read_bytes() for photo in photos]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    whole = all(_sha256(content) == photo.sha256 for content, photo in zip(contents, photos, strict=True))
    return photos if whole else None


def _make(size: Size, sources: Sequence[Path]) -> list[Drawn]:
    width, height = (int(side) for side in size.split("x"))
    rng = np.random.default_rng(SEED)
    made = []
    for source in sources:
        original = Image.open(source).convert("RGB")
        for part in ("whole", "near"):
            content = jpeg(_picture(original, part, width, height, rng))
            made.append(Drawn(f"{source.stem}-{part}.jpg", source.name, content))
    return made


def _source_files() -> list[Path]:
    return [packaged(location, name) for location, names in _SOURCES.items() for name in names]


def packaged(location: str, name: str) -> Path:
    """A file that an installed package carries. ``location`` is the package and the folder in it.

    Raises ``PhotosMissing`` naming the command that installs it.
    """
    package, _, inside = location.partition("/")
    spec = importlib.util.find_spec(package)
    file = None if spec is None or spec.origin is None else Path(spec.origin).parent / inside / name
    if file is None or not file.is_file():
        raise PhotosMissing(f"{name} comes with the package {package}; run: {install_command(group='bench')}")
    return file


def _picture(original: Image.Image, part: str, width: int, height: int, rng: np.random.Generator) -> Image.Image:
    """A part of a photo at the wanted size, filtered so that it neither aliases nor shows blocks."""
    shrink = min(original.width / width, original.height / height) * (_NEAR if part == "near" else 1)
    wide, high = width * shrink, height * shrink
    centred = (max(0.0, (original.width - wide) / 2), max(0.0, (original.height - high) / 2))
    left, top = (0.0, 0.0) if part == "near" else centred
    box = (left, top, min(left + wide, original.width), min(top + high, original.height))
    picture = original.resize((width, height), Image.Resampling.LANCZOS, box=box)
    if part == "near":
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return _with_grain(picture, rng) if width * height > _GRAIN_ABOVE_PIXELS else picture


def _with_grain(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    grain = rng.normal(0, _GRAIN_SIGMA, (picture.height, picture.width, 1))
    return Image.fromarray(np.clip(np.rint(np.asarray(picture) + grain), 0, 255).astype(np.uint8))


def make_photos(size: Size, count: int, *, sources: Sequence[Path], seed: int, threads: int) -> list[bytes]:
    """``count`` JPEGs of one size, or each of its own, 4:2:0, always the same for the same seed and Pillow.

    Each is a random part of a source, at least 0.6 as large as the largest that fits, mirrored or not. Enlarged
    pictures are smoother than a camera's, so the large size gets grain, too. Raises ``ValueError`` without sources.
    """
    if not sources:
        raise ValueError("photos are made from image files, got none")
    originals = [Image.open(path).convert("RGB") for path in sources]

    def make(index: int) -> bytes:
        if size == "mixed":
            width, height = (int(side) for side in np.random.default_rng((seed, index)).integers(*_MIXED_SIDES))
        else:
            width, height = (int(side) for side in size.split("x"))
        rng = np.random.default_rng((seed, width, height, index))
        return jpeg(_part(originals[index % len(originals)], width, height, rng))

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(make, range(count)))


def _part(original: Image.Image, width: int, height: int, rng: np.random.Generator) -> Image.Image:
    scale = min(original.width / width, original.height / height) * rng.uniform(_SMALLEST_PART, 1)
    wide, high = width * scale, height * scale
    left, top = rng.uniform(0, original.width - wide), rng.uniform(0, original.height - high)
    box = (left, top, min(left + wide, original.width), min(top + high, original.height))
    picture = original.resize((width, height), Image.Resampling.LANCZOS, box=box)
    if rng.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if width * height <= _GRAIN_ABOVE_PIXELS:
        return picture
    grain = rng.standard_normal((height, width, 1), np.float32) * _GRAIN_SIGMA
    return Image.fromarray(np.clip(np.rint(np.asarray(picture) + grain), 0, 255).astype(np.uint8))


def jpeg(picture: Image.Image) -> bytes:
    """A picture as the benchmarks send it."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def title(size: Size) -> str:
    """A size as tables show it, such as ``1920×1080``."""
    return size.replace("x", "×")


def mean_kilobytes(photos: tuple[Photo, ...]) -> float:
    """Mean file size in units of 1000 bytes."""
    return math.fsum(photo.bytes for photo in photos) / len(photos) / 1000
