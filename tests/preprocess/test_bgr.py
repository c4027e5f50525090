"""Blue, green, red: what every backend makes of a definition in BGR is what it makes in RGB, channels reversed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from cvcuda_on_host import cvcuda_on_host
from definitions import in_levels
from image_files import encode, png_of
from sample_images import CONVERTED, PLAIN, photo, portrait

from onestream.preprocess import BadImage, CenterCrop, Decode, Definition, Letterbox, Normalize, Resize, compile
from onestream.preprocess.backends.base import Sample
from onestream.preprocess.backends.reference import picture

MEAN, STD = (103.53, 116.28, 123.675), (57.375, 57.12, 58.395)
NANODET = Definition(
    operations=[Decode(color="bgr"), Letterbox(size=(96, 128)), Normalize(mean=MEAN, std=STD, scale=1)]
)
BACKENDS = ("reference", "dali", "cvcuda", "cvcuda, hq")
Run = Callable[[Definition, str, Sequence[bytes]], list[Sample | BadImage]]


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs a definition on one of ``BACKENDS``; those of a GPU on host memory."""
    with cvcuda_on_host() as compile_on_host:

        def run_on(definition: Definition, backend: str, files: Sequence[bytes]) -> list[Sample | BadImage]:
            name, _, resize = backend.partition(", ")
            if name != "cvcuda":
                return compile(definition, backend=name).run(files)
            return compile_on_host(definition, resize=resize or "exact").run(files)

        yield run_on


def in_rgb(definition: Definition) -> Definition:
    """The same network's definition as one writes it in RGB: means and deviations in the other order."""
    operations = [Decode(), *definition.operations[1:]]
    return Definition(
        operations=[
            op.model_copy(update={"mean": op.mean[::-1], "std": op.std[::-1]}) if isinstance(op, Normalize) else op
            for op in operations
        ]
    )


def assert_reversed(definition: Definition, bgr: Sample | BadImage, rgb: Sample | BadImage) -> None:
    assert not isinstance(bgr, BadImage), bgr
    assert not isinstance(rgb, BadImage), rgb
    axis = 0 if definition.network_input.layout == "NCHW" else 2
    assert bgr.dtype == rgb.dtype
    np.testing.assert_array_equal(bgr, np.flip(rgb, axis))


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_format_gray_cmyk_and_alpha_among_them(backend: str, run: Run) -> None:
    image = portrait("coffee").reduce(3)
    files = [make(image) for make in (PLAIN | CONVERTED).values()]
    results = run(NANODET, backend, files), run(in_rgb(NANODET), backend, files)
    for bgr, rgb in zip(*results, strict=True):
        assert_reversed(NANODET, bgr, rgb)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_channel_is_blue(backend: str, run: Run) -> None:
    """A picture of one colour, by hand: nothing here depends on another run of the same code."""
    file = png_of(np.full((40, 60, 3), (200, 100, 50), np.uint8))
    geometries = {
        "resized": [Resize(mode="exact", size=(20, 20))],
        "enlarged": [Resize(mode="exact", size=(70, 80))],
        "as it is": [],
        "cut": [CenterCrop(size=(20, 20))],
    }
    for name, geometry in geometries.items():
        (seen,) = run(in_levels(*geometry, color="bgr"), backend, [file])
        assert (seen == np.array([50, 100, 200])).all(), name
    (seen,) = run(NANODET, backend, [file])
    np.testing.assert_allclose(seen[:, 48, 64], (np.array([50, 100, 200]) - MEAN) / STD, rtol=1e-6)
    # The border is one level in every channel.
    np.testing.assert_allclose(seen[:, 0, 0], (114 - np.array(MEAN)) / STD, rtol=1e-6)


def test_pictures_to_look_at_have_the_right_colors() -> None:
    file = encode(photo("coffee"), "PNG")
    expected = np.asarray(photo("coffee"))
    for color in ("rgb", "bgr", "gray"):
        (pixels,) = compile(in_levels(color=color)).run([file])
        shown = picture(pixels, color)
        right = photo("coffee").convert("L") if color == "gray" else expected
        np.testing.assert_array_equal(np.asarray(shown), np.asarray(right))
