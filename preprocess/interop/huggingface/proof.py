"""What an image processor computes, compared with definitions on synthetic pictures: the proof of an import."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from onestream.preprocess.backends.base import ON_CPU
from onestream.preprocess.compile import compile
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage, CannotImport
from onestream.preprocess.interop.libraries import is_installed, load
from onestream.preprocess.tolerances import compare

WITHIN = 1.01
"""In levels of 255: one, and float32's last bits. A library may keep fractions of a level that a definition rounds."""
EQUAL = 0.001
"""In levels: some ten units in the last place of a float32."""
_SHARES = ((0.6, 0.9), (1.0, 1.0), (1.3, 1.9), (1.6, 0.27), (0.27, 1.6), (1.9, 1.7))
"""Heights and widths of the pictures, in those of the network's input: smaller, equal, larger, narrow and wide."""
_USUAL_SIDE = 224
"""Of the network's input where it depends on the picture."""


def installed(name: str, config: Mapping[str, Any]) -> Any:
    """The image processor of transformers of this name, with this config; None where there is none.

    A name that does not end in *Fast* is that of the class that resizes with Pillow, if there is one. Raises
    ``CannotImport`` where the class does not accept the config.
    """
    if not all(map(is_installed, ("transformers", "torchvision"))):
        return None
    library = load("transformers")
    plain = name.removesuffix("Fast").removesuffix("Pil").replace("FeatureExtractor", "ImageProcessor")
    names = [plain] if name.endswith("Fast") else [f"{plain}Pil", plain]
    classes: list[Any] = [found for found in (getattr(library, one, None) for one in names) if isinstance(found, type)]
    if not plain.endswith("ImageProcessor") or not classes:
        return None
    try:
        return classes[0].from_dict(dict(config))
    except Exception as error:  # of code that is not ours, and a config that may be anything
        raise CannotImport(f"transformers' {classes[0].__name__} does not accept the config: {error}") from None


def difference(
    definition: Definition,
    source: Callable[[Image.Image], Any],
    *,
    pictures: int = len(_SHARES),
    run: Callable[[bytes], npt.NDArray[Any] | BadImage] | None = None,
) -> float:
    """The largest difference between a definition and what a library computes, in levels of 255, on pictures of noise.

    It ends at the first picture with one above ``WITHIN``, which is infinite where the shape or kind of the values
    differs, or a bit of a patch or tile. ``run`` executes a definition that ends in those on an encoded picture.
    """
    run, most = run or _run_of(definition), 0.0
    for image in islice(_pictures(definition), pictures):
        theirs = np.asarray(source(image))
        file = io.BytesIO()
        image.save(file, "PNG", compress_level=0)
        ours = run(file.getvalue())
        if isinstance(ours, BadImage) or (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            return float("inf")
        if definition.for_processor is not None:
            most = max(most, 0.0 if np.array_equal(ours, theirs) else float("inf"))
            continue
        most = max(most, compare(theirs, ours, definition=definition, stage="normalize", backend=ON_CPU).max)
        if most > WITHIN:
            break
    return most


def _run_of(definition: Definition) -> Callable[[bytes], npt.NDArray[Any] | BadImage]:
    compiled = compile(definition)
    return lambda content: compiled.run([content])[0]


def _pictures(definition: Definition) -> Iterator[Image.Image]:
    sides = [known or _USUAL_SIDE for known in definition.pixels().output_spec.size_hw]
    for number, shares in enumerate(_SHARES):
        height, width = (max(round(side * share), 2) for side, share in zip(sides, shares, strict=True))
        yield Image.fromarray(np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8))


def pixels(processor: Any, image: Image.Image) -> npt.NDArray[Any]:
    """What an image processor makes of a picture: (3, height, width), or patches in rows.

    Raises ``CannotImport`` where that is anything else.
    """
    name = type(processor).__name__
    try:
        made = processor(image, return_tensors="np")
        found: npt.NDArray[Any] = np.asarray(made["pixel_values"])
    except Exception as error:  # of code that is not ours
        raise CannotImport(
            f"{name} makes no pixel_values of a picture: {type(error).__name__}: {error}. The nearest exact is a class "
            "that makes them, such as ViTImageProcessor; measure its accuracy"
        ) from None
    if "image_grid_thw" in made or "spatial_shapes" in made:
        return found
    more = [key for key in made if "pixel_values" in key and key != "pixel_values"]
    if found.ndim != 4 or len(found) != 1 or more:
        shown = f"{', '.join(more)} too" if more else f"pixel_values of shape {list(found.shape)}"
        raise CannotImport(
            f"{name} makes {shown} of one picture, which are tiles, patches or frames. The nearest exact is one "
            "picture for the network, by an image processor such as ViTImageProcessor; measure its accuracy"
        )
    only: npt.NDArray[Any] = found[0]
    return only
