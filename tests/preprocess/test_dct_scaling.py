"""JPEGs decoded at a fraction of their size: the rule, the geometry, the bits, and what refuses it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cvcuda_on_host import cvcuda_on_host
from definition_strategies import BOXES, FILTERS, resizes
from definitions import in_levels
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode
from PIL import Image
from sample_images import ASSETS, photo
from test_decode_options import ADOBE_RGB, turned

from onestream.preprocess import (
    BadImage,
    CannotCompile,
    CenterCrop,
    Decode,
    Definition,
    Letterbox,
    Limits,
    Output,
    Resize,
    compile,
)
from onestream.preprocess.backends.base import refuse_decoding
from onestream.preprocess.operations import Operation
from onestream.preprocess.plan import Planner

SIZES = st.tuples(st.integers(1, 900), st.integers(1, 900)) | st.tuples(st.integers(2000, 65535), st.integers(1, 9000))
FILE = encode(photo("coffee").crop((0, 0, 597, 395)), "JPEG", quality=92)
"""No side is a multiple of 2."""


def scaled(*geometry: Operation, **decode: Any) -> Definition:
    return Definition(operations=[Decode(dct_scaling=True, **decode), *geometry, Output(layout="NHWC", dtype="uint8")])


SMALL = scaled(Resize(mode="shorter", size=40, filter="bicubic"), CenterCrop(size=(33, 47)))


@given(resize=resizes(FILTERS.filter(lambda name: name != "nearest")), crop=BOXES, size_hw=SIZES)
def test_the_smallest_picture_of_twice_the_resized_size_is_decoded(
    resize: Resize, crop: tuple[int, int], size_hw: tuple[int, int]
) -> None:
    planner = Planner(scaled(resize, CenterCrop(size=crop)))
    whole, plan = planner(size_hw), planner(size_hw, is_jpeg=True)
    wanted = [2 * side for side in whole.resized_hw]
    enough = [
        n for n in (1, 2, 4, 8) if all(-(-side // n) >= least for side, least in zip(size_hw, wanted, strict=True))
    ]
    assert (whole.factor, plan.factor) == (1, max(enough, default=1))
    assert (plan.resized_hw, plan.window, plan.offset, plan.canvas_hw) == (
        whole.resized_hw,
        whole.window,
        whole.offset,
        whole.canvas_hw,
    )
    np.testing.assert_allclose(np.array(plan.source) * plan.factor, whole.source, rtol=1e-12)
    if plan.factor > 1:
        assert plan.part.size_hw == tuple(-(-side // plan.factor) for side in size_hw)
        assert plan.spans == plan.source


@pytest.mark.parametrize("filter", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize(("size", "factor"), [(150, 1), (90, 2), (49, 4), (20, 8)])
def test_the_reference_is_pillows_draft_and_its_resize_of_a_box(filter: Any, size: int, factor: int) -> None:
    image = Image.open(io.BytesIO(FILE))
    width, height = image.size
    image.draft(None, (width // factor, height // factor))
    expected = image.resize(
        (size * width // height, size), filter_of(filter), box=(0, 0, width / factor, height / factor)
    )
    definition = scaled(Resize(mode="shorter", size=size, filter=filter))
    (found,) = compile(definition).run([FILE])
    np.testing.assert_array_equal(found, np.asarray(expected))
    (dali,) = compile(definition, backend="dali").run([FILE])
    np.testing.assert_array_equal(dali, found)


def filter_of(name: str) -> Image.Resampling:
    return Image.Resampling[name.upper()]


FORMS: dict[str, tuple[bytes, dict[str, Any]]] = {
    "progressive": (encode(photo("rocket"), "JPEG", progressive=True), {}),
    "4:4:4": (encode(photo("rocket"), "JPEG", subsampling=0), {}),
    "gray": (encode(photo("rocket").convert("L"), "JPEG"), {}),
    "turned": (encode(photo("rocket"), "JPEG", exif=turned()), {}),
    "to gray": (FILE, {"color": "gray"}),
    "to bgr": (FILE, {"color": "bgr"}),
    "profile": (encode(photo("rocket"), "JPEG", icc_profile=ADOBE_RGB), {"profile": "srgb"}),
    "PNG": (encode(photo("rocket"), "PNG"), {}),
    "no larger than a pixel": (encode(photo("rocket").resize((1, 1)), "JPEG"), {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_backends_on_a_cpu_agree_in_every_bit_and_only_jpegs_change(form: str) -> None:
    file, decode = FORMS[form]
    definition, whole = (
        Definition(operations=[Decode(dct_scaling=scales, **decode), *SMALL.operations[1:]]) for scales in (True, False)
    )
    (reference,), (dali,), (other,) = (
        compile(one, backend=backend).run([file])
        for one, backend in ((definition, "reference"), (definition, "dali"), (whole, "reference"))
    )
    np.testing.assert_array_equal(reference, dali)
    difference = np.abs(reference.astype(int) - other)
    assert difference.max() < 30
    assert (difference.max() == 0) == (form in ("PNG", "no larger than a pixel"))


def test_a_batch_keeps_its_order_and_bad_files_hurt_only_themselves() -> None:
    files = [FILE, FILE[:-900], FORMS["PNG"][0], b"", FORMS["turned"][0], FILE[:3000]]
    alone = [compile(SMALL).run([file])[0] for file in files]
    for threads in (1, 2):
        dali = compile(SMALL, backend="dali", threads=threads)
        found = dali.run(files)
        dali.close()
        for one, expected in zip(found, alone, strict=True):
            assert isinstance(one, BadImage) == isinstance(expected, BadImage)
            if isinstance(one, BadImage):
                assert one.code == expected.code
            else:
                np.testing.assert_array_equal(one, expected)
    assert [isinstance(one, BadImage) for one in alone] == [False, True, False, True, False, True]


def test_limits_are_of_the_size_in_the_header() -> None:
    for backend in ("reference", "dali"):
        (refused,) = compile(SMALL, backend=backend, limits=Limits(max_pixels=597 * 395 - 1)).run([FILE])
        assert refused.code == "too_many_pixels"


def test_a_loader_gives_what_is_served_and_training_decodes_whole_pictures(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from onestream.preprocess.training import ImageLoader

    for name in ("coffee", "rocket"):
        (tmp_path / f"{name}.jpg").write_bytes((ASSETS / f"{name}.jpg").read_bytes())
    files = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    served = compile(SMALL, backend="dali").run(files)
    with ImageLoader(SMALL, tmp_path, batch_size=2, threads=1) as loader:
        np.testing.assert_array_equal(next(iter(loader)).images, served)
    whole = in_levels(*SMALL.geometry)
    batches = []
    for definition in (SMALL, whole):
        with ImageLoader(definition, tmp_path, batch_size=2, threads=1, train=True) as loader:
            batches.append(next(iter(loader)).images)
    np.testing.assert_array_equal(*batches)


@pytest.mark.parametrize(
    "geometry",
    [
        [],
        [CenterCrop(size=(20, 20)), Resize(mode="exact", size=(20, 20))],
        [Resize(mode="exact", size=(20, 20), filter="nearest")],
        [Resize(mode="exact", size=(20, 20), antialias=False)],
        [Letterbox(size=(20, 20), filter="nearest")],
    ],
)
def test_it_needs_a_resize_that_averages_next(geometry: list[Operation]) -> None:
    with pytest.raises(ValueError, match="dct_scaling averages pixels, so the next operation must be a resize"):
        scaled(*geometry)


def test_what_decodes_whole_pictures_refuses_it() -> None:
    with cvcuda_on_host() as on_host, pytest.raises(CannotCompile, match=r"cvcuda decodes JPEGs whole"):
        on_host(SMALL)
    with pytest.raises(CannotCompile, match=r"dali on a GPU decodes JPEGs whole"):
        compile(SMALL, backend="dali", device="gpu")
    with pytest.raises(CannotCompile, match="the container cannot do dct_scaling True of decode"):
        refuse_decoding(SMALL, what="the container")
    pytest.importorskip("torch")
    from onestream.preprocess.interop import to_torchvision
    from onestream.preprocess.training.proxy import DaliProxy

    with pytest.raises(CannotCompile, match=r"torchvision decodes JPEGs whole"):
        to_torchvision(SMALL)
    with pytest.raises(CannotCompile, match=r"the DALI proxy decodes JPEGs whole"):
        DaliProxy(SMALL, batch_size=2)


def test_a_definition_without_it_keeps_its_json() -> None:
    assert "dct_scaling" not in in_levels().canonical_json()
    assert '"dct_scaling":true' in SMALL.canonical_json()
    assert SMALL.stage("decode") == in_levels()
