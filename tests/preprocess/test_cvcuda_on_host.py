"""What the CV-CUDA backend asks of a GPU, done in host memory: regions, rows, fills, constants, isolation, waits."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from cvcuda_on_host import Compile, cvcuda_on_host
from definition_strategies import SIZES, definitions
from host_gpu import HostDevice, view
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode
from PIL import Image
from sample_images import CONVERTED, PLAIN, half, noise, photo, portrait
from test_isolation import BAD, good_files
from test_parity import CLASSIFY, VARIANTS

from onestream.preprocess import BadImage, CannotCompile, CenterCrop, Decode, Definition, Limits, Pad, Resize, compile
from onestream.preprocess.backends.base import refuse_inexact
from onestream.preprocess.backends.batches import Planned, groups
from onestream.preprocess.cuda.step_timer import StepTimer
from onestream.preprocess.errors import BackendMissing
from onestream.preprocess.headers.reader import Header
from onestream.preprocess.plan import Planner
from onestream.preprocess.training import Augmentation


@pytest.fixture
def on_host() -> Iterator[Compile]:
    with cvcuda_on_host() as compile_on_host:
        yield compile_on_host


HQ = {
    name: definition
    for name, definition in VARIANTS.items()
    if not any(other in name for other in ("nearest", "bicubic", "lanczos", "not antialiased"))
}
"""What CV-CUDA's resize can do."""


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_definition_gives_the_reference_in_every_bit(variant: str, on_host: Compile) -> None:
    """Every filter, layout and dtype; sizes that depend on the image; several sizes in a batch."""
    definition = VARIANTS[variant]
    images = (
        half("chelsea"),
        portrait("coffee").reduce(2),
        noise(111, 153),
        photo("coffee").resize((9, 7)),
        noise(290, 30),
    )
    files = [encode(image, "PNG") for image in images]
    for seen, expected in zip(
        on_host(definition, max_batch_size=3).run(files), compile(definition).run(files), strict=True
    ):
        assert seen.dtype == expected.dtype
        np.testing.assert_array_equal(seen, expected)


@given(definition=definitions(), size=SIZES, seed=st.integers(0, 99))
def test_whatever_a_cpu_compiles_gives_the_reference_in_every_bit(
    definition: Definition, size: tuple[int, int], seed: int
) -> None:
    """Windows that miss the image among them."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)
    file = encode(Image.fromarray(pixels), "PNG")
    with cvcuda_on_host() as compile_on_host:
        (seen,), (expected,) = compile_on_host(definition).run([file]), compile(definition).run([file])
    if isinstance(expected, BadImage):
        assert seen.code == expected.code
    else:
        np.testing.assert_array_equal(seen, expected)


@pytest.mark.parametrize("variant", HQ)
def test_hq_gives_the_reference_but_for_the_border(variant: str, on_host: Compile) -> None:
    """The filter repeats the border where Pillow renormalizes: the outermost pixels of an uncropped image differ."""
    definition = HQ[variant].pixels()
    reference, backend = compile(definition), on_host(definition, resize="hq")
    for image in (half("chelsea"), portrait("coffee").reduce(2), noise(111, 153)):
        file = encode(image, "PNG")
        (expected,), (seen,) = reference.run([file]), backend.run([file])
        assert seen.shape == expected.shape
        assert seen.dtype == expected.dtype
        difference = np.abs(seen.astype(int) - expected)
        window, (top, left) = (placement := Planner(definition)((image.height, image.width))).window, placement.offset
        bottom, right = top + window.height, left + window.width
        border = np.ones(difference.shape[:2], bool)
        border[top + 1 : bottom - 1, left + 1 : right - 1] = False
        assert difference[~border].max() <= 1
        outside = np.ones(border.shape, bool)
        outside[top:bottom, left:right] = False
        assert difference[outside].max(initial=0) == 0
        if window.height < placement.resized_hw[0] and window.width < placement.resized_hw[1]:
            assert difference.max() <= 1


@pytest.mark.parametrize("form", [*PLAIN, *CONVERTED])
def test_every_format_is_decoded_and_oriented(form: str, on_host: Compile) -> None:
    file = (PLAIN | CONVERTED)[form](portrait("coffee").reduce(3))
    cut = CLASSIFY.stage("decode")
    (seen,), (expected,) = on_host(cut).run([file]), compile(cut).run([file])
    assert seen.shape == expected.shape
    # As DALI on the CPU, which decodes with the same libraries: CMYK and 16 bit are rounded, not cut.
    assert np.abs(seen.astype(int) - expected).max() <= (0 if form in PLAIN else 2)


def test_bad_images_among_good_ones_change_nothing(on_host: Compile) -> None:
    good = list(good_files()[:12])
    alone = on_host(CLASSIFY, max_batch_size=1).run(good)
    for places in ([0, 1, 2, 3, 4, 5, 6], [1, 3, 5, 7, 9, 11, 13], [12, 13, 14, 15, 16, 17, 18]):
        batch: list[bytes] = list(good)
        for place_, name in zip(places, BAD, strict=True):
            batch.insert(place_, BAD[name])
        for size in (5, len(batch)):
            results = on_host(CLASSIFY, max_batch_size=size).run(batch)
            assert [index for index, one in enumerate(results) if isinstance(one, BadImage)] == places
            kept = [one for one in results if not isinstance(one, BadImage)]
            for seen, expected in zip(kept, alone, strict=True):
                np.testing.assert_array_equal(seen, expected)
    codes = {name: one.code for name, one in zip(BAD, on_host(CLASSIFY).run([*BAD.values()]), strict=True)}
    expected_codes = compile(CLASSIFY, backend="dali").run([*BAD.values()])
    assert list(codes.values()) == [one.code for one in expected_codes]


def test_pixels_of_another_size_than_the_header_declares_are_a_bad_image(
    on_host: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels read what the header promises, so nothing else may reach them."""
    file = encode(photo("coffee"), "PNG")
    from onestream.preprocess.backends import cvcuda as backend

    decode = backend.ImageDecoder.decode
    smaller = photo("coffee").resize((20, 30))
    for other in (smaller, photo("coffee").resize((4000, 30))):
        wrong = (encode(other, "PNG"), Limits().check(encode(other, "PNG")))
        monkeypatch.setattr(
            backend.ImageDecoder, "decode", lambda self, given, wrong=wrong: decode(self, [given[0], wrong, *given[2:]])
        )
        first, second, third = on_host(CLASSIFY).run([file, file, file])
        assert second.code == "corrupt"
        np.testing.assert_array_equal(first, third)


def test_a_batch_goes_into_the_rows_of_the_networks_input_without_a_wait(on_host: Compile) -> None:
    device = HostDevice()
    stream = device.stream()
    definition = CLASSIFY.pixels()
    rows = stream.allocate((6, 224, 224, 3), np.uint8)
    timer = StepTimer(stream)
    backend = on_host(definition, max_batch_size=6, stream=stream, output=rows, timer=timer)
    files = [encode(photo("coffee"), "JPEG"), b"not an image", encode(photo("rocket"), "JPEG"), BAD["cut JPEG"]]
    timer.start()
    queued = backend.enqueue(files)
    assert queued.good == (0, 2)
    assert sorted(queued.bad) == [1, 3]
    assert device.syncs == 0
    stream.sync()
    assert set(timer.milliseconds()) == {"decode", "resize"}
    # nvImageCodec decodes on the CPU here, with the reference's own library.
    expected = compile(definition).run([files[0], files[2]])
    for row, one in zip(view(rows), expected, strict=False):
        np.testing.assert_array_equal(row, one)
    assert (view(rows)[2:] == 0xA5).all()
    assert [view(sample).ctypes.data for sample in queued.samples] == [view(rows)[row].ctypes.data for row in (0, 1)]


def test_one_wait_for_each_batch(on_host: Compile) -> None:
    device = HostDevice()
    backend = on_host(CLASSIFY, max_batch_size=4, stream=device.stream())
    before = device.syncs
    backend.run(good_files()[:12])
    assert device.syncs - before == 3


def test_what_cannot_be_done_exactly_is_refused(on_host: Compile) -> None:
    for operations, reason in (
        ([Decode(), Resize(mode="shorter", size=8, filter="bicubic"), CenterCrop(size=(8, 8))], "'bicubic'"),
        ([Decode(), Resize(mode="exact", size=(8, 8), antialias=False)], "without antialias"),
        ([Decode(), Pad(size=(9, 9)), CenterCrop(size=(1, 1))], "may miss the image"),
    ):
        with pytest.raises(CannotCompile, match=f"{reason}.*cvcuda with resize 'exact' can"):
            on_host(Definition(operations=operations), resize="hq")
        on_host(Definition(operations=operations))
    for operations, reason in (
        ([Decode(), CenterCrop(size=(8, 8)), Resize(mode="exact", size=(4, 4))], "one resize"),
        ([Decode(), CenterCrop(size=(8, 8)), Pad(size=(9, 9), value=3)], "one value"),
        ([Decode(), Pad(size=(9, 9), value=(1, 2, 3))], r"fills with \[1, 2, 3\]. Backends on a CPU"),
    ):
        for resize in ("exact", "hq"):
            with pytest.raises(CannotCompile, match=reason):
                on_host(Definition(operations=operations), resize=resize)
    with pytest.raises(ValueError, match="at most 2"):
        on_host(CLASSIFY, max_batch_size=2).enqueue([b""] * 3)
    with pytest.raises(ValueError, match="uint8 NHWC"):
        on_host(CLASSIFY, output=HostDevice().stream().allocate((8, 224, 224, 3), np.uint8))


def test_a_machine_without_a_gpu_or_library_says_what_is_missing() -> None:
    with pytest.raises((BackendMissing, CannotCompile), match=r"GPU|driver"):
        compile(CLASSIFY, backend="cvcuda", device="gpu")
    with pytest.raises(CannotCompile, match="'gpu' only"):
        compile(CLASSIFY, backend="cvcuda")
    with pytest.raises((BackendMissing, CannotCompile), match=r"GPU|driver"):
        compile(CLASSIFY, backend="cvcuda", device="gpu", varied=True)


@given(sizes=st.lists(SIZES, max_size=30), most=st.integers(1, 8), pixels=st.integers(1, 40_000))
def test_groups_keep_order_and_bounds(sizes: list[tuple[int, int]], most: int, pixels: int) -> None:
    planner = Planner(CLASSIFY)
    planned = [Planned(index, b"", Header("JPEG", *size), planner(size)) for index, size in enumerate(sizes)]
    found = list(groups(planned, max_items=most, max_pixels=pixels))
    assert [item for group in found for item in group] == planned
    for group in found:
        assert len(group) <= most
        assert len(group) == 1 or sum(item.pixels for item in group) <= pixels


@given(size=SIZES, variant=st.sampled_from(sorted(HQ)))
def test_regions_lie_inside_the_image_and_windows_inside_the_canvas(size: tuple[int, int], variant: str) -> None:
    definition = HQ[variant]
    refuse_inexact(definition, backend="cvcuda", own_filter=True)
    try:
        plan = Planner(definition)(size)
    except BadImage:
        return
    (top, bottom), (left, right) = plan.source
    # Doubles: the corner of a whole side may miss it by an ulp.
    assert 0 <= top < bottom <= size[0] * (1 + 1e-12)
    assert 0 <= left < right <= size[1] * (1 + 1e-12)
    for first, kept, side in zip(plan.offset, plan.window.size_hw, plan.canvas_hw, strict=True):
        assert 0 <= first <= first + kept <= side


VARIED = Augmentation(
    [
        {"op": "box", "area": [0.3, 1.0]},
        {"op": "flip"},
        {"op": "rotation", "degrees": [-40, 40], "probability": 0.5},
        {"op": "trivial_augment"},
        {"op": "linear_color", "hue": 0.1, "brightness": 0.2},
        {"op": "erase"},
    ]
)


def variations(definition: Definition, images: list[Image.Image]) -> list[Any]:
    drawn = [
        VARIED.draw((image.height, image.width), seed=1, epoch=0, index=index, definition=definition)
        for index, image in enumerate(images)
    ]
    assert {one.box is None for one in drawn} == {False, True}
    return [lambda _, one=one: one for one in drawn]


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "nothing"])
def test_varied_pictures_are_the_references_in_every_bit(variant: str, on_host: Compile) -> None:
    """A bad one among them; decoded, varied and normalized in batches of three."""
    definition = VARIANTS[variant]
    images = [half("chelsea"), portrait("coffee").reduce(2), noise(91, 133), noise(50, 40)] * 2
    files, varies = [encode(image, "PNG") for image in images], variations(definition, images)
    files[3] = files[3][:-500]
    seen = on_host(definition, max_batch_size=3, varied=True).run(files, varies)
    for one, expected in zip(seen, compile(definition, varied=True).run(files, varies), strict=True):
        if isinstance(expected, BadImage):
            assert one.code == expected.code
        else:
            assert one.dtype == expected.dtype
            np.testing.assert_array_equal(one, expected)


def test_a_batch_stays_on_the_gpu_for_whichever_thread_asks(on_host: Compile) -> None:
    images = [photo("chelsea"), portrait("coffee"), noise(50, 40), photo("coffee")]
    files, varies = [encode(image, "PNG") for image in images], variations(CLASSIFY, images)
    files[1] = b"no picture"
    backend = on_host(CLASSIFY, varied=True)
    with ThreadPoolExecutor(1) as threads:
        batch, bad = threads.submit(backend.run_on_device, files, varies).result()
        assert [*bad] == [1]
        expected = compile(CLASSIFY, varied=True).run(files, varies)
        del expected[1]
        np.testing.assert_array_equal(view(batch), np.stack(expected))
        nothing, bad = threads.submit(backend.run_on_device, [b"no picture"], varies[:1]).result()
    assert nothing is None
    assert [*bad] == [0]


def test_variations_are_asked_for_when_compiling(on_host: Compile) -> None:
    file, vary = encode(photo("coffee"), "PNG"), variations(CLASSIFY, [noise(50, 40), photo("coffee")] * 4)[0]
    with pytest.raises(ValueError, match=r"compile\(varied=True\)"):
        on_host(CLASSIFY).run([file], [vary])
    with pytest.raises(ValueError, match=r"compile\(varied=True\)"):
        on_host(CLASSIFY, varied=True).run([file])
