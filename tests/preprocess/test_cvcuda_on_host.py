"""What the CV-CUDA backend asks of a GPU, done in host memory: regions, rows, fills, constants, isolation, waits."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from cvcuda_on_host import Compile, cvcuda_on_host
from definition_strategies import SIZES, definitions
from definitions import chain
from host_gpu import HostDevice, view
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode
from PIL import Image
from same_samples import assert_same
from sample_images import CONVERTED, PLAIN, half, noise, photo, portrait
from test_isolation import BAD, good_files
from test_parity import CLASSIFY, VARIANTS

from onestream.preprocess import BadImage, CannotCompile, CenterCrop, Definition, Limits, Pad, Resize, compile
from onestream.preprocess.backends.batches import Planned, groups
from onestream.preprocess.cuda.step_timer import StepTimer
from onestream.preprocess.errors import BackendMissing
from onestream.preprocess.geometry import Size, Window
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
IMAGES = (half("chelsea"), portrait("coffee").reduce(2), noise(111, 153))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_definition_gives_the_reference_in_every_bit(variant: str, on_host: Compile) -> None:
    """Every filter, layout and dtype; sizes that depend on the image; several sizes in a batch."""
    definition = VARIANTS[variant]
    files = [encode(image, "PNG") for image in (*IMAGES, photo("coffee").resize((9, 7)), noise(290, 30))]
    assert_same(on_host(definition, max_batch_size=3).run(files), compile(definition).run(files))


@given(definition=definitions(), size=SIZES, seed=st.integers(0, 99))
def test_whatever_a_cpu_compiles_gives_the_reference_in_every_bit(
    definition: Definition, size: Size, seed: int
) -> None:
    """Windows that miss the image among them."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)
    file = encode(Image.fromarray(pixels), "PNG")
    with cvcuda_on_host() as compile_on_host:
        assert_same(compile_on_host(definition).run([file]), compile(definition).run([file]))


@pytest.mark.parametrize("variant", HQ)
def test_hq_gives_the_reference_but_for_the_border(variant: str, on_host: Compile) -> None:
    """The filter repeats the border where Pillow renormalizes: the outermost pixels of an uncropped image differ."""
    definition = HQ[variant].pixels()
    reference, backend = compile(definition), on_host(definition, resize="hq")
    for image in IMAGES:
        file = encode(image, "PNG")
        (expected,), (seen,) = reference.run([file]), backend.run([file])
        assert (seen.shape, seen.dtype) == (expected.shape, expected.dtype)
        difference = np.abs(seen.astype(int) - expected)
        plan = Planner(definition)((image.height, image.width))
        inside = difference[Window(*plan.offset, *plan.window.size_hw).slices]
        assert inside.sum() == difference.sum()
        assert inside[1:-1, 1:-1].max() <= 1
        if plan.window.height < plan.resized_hw[0] and plan.window.width < plan.resized_hw[1]:
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
    good, device = list(good_files()[:12]), HostDevice()
    alone = on_host(CLASSIFY, max_batch_size=1, stream=device.stream()).run(good)
    assert device.syncs == len(good), "one wait for each batch"
    for places in ([0, 1, 2, 3, 4, 5, 6], [1, 3, 5, 7, 9, 11, 13], [12, 13, 14, 15, 16, 17, 18]):
        batch: list[bytes] = list(good)
        for place_, name in zip(places, BAD, strict=True):
            batch.insert(place_, BAD[name])
        for size in (5, len(batch)):
            results = on_host(CLASSIFY, max_batch_size=size).run(batch)
            assert [index for index, one in enumerate(results) if isinstance(one, BadImage)] == places
            assert_same([one for one in results if not isinstance(one, BadImage)], alone)
    assert_same(*(made.run([*BAD.values()]) for made in (on_host(CLASSIFY), compile(CLASSIFY, backend="dali"))))


def test_pixels_of_another_size_than_the_header_declares_are_a_bad_image(
    on_host: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels read what the header promises, so nothing else may reach them."""
    from onestream.preprocess.backends import cvcuda as backend

    file, decode = encode(photo("coffee"), "PNG"), backend.ImageDecoder.decode
    for size in ((20, 30), (4000, 30)):
        other = encode(photo("coffee").resize(size), "PNG")
        wrong = (other, Limits().check(other))
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
    assert_same(view(rows)[:2], compile(definition).run([files[0], files[2]]))
    assert (view(rows)[2:] == 0xA5).all()
    assert [view(sample).ctypes.data for sample in queued.samples] == [view(rows)[row].ctypes.data for row in (0, 1)]


def test_what_cannot_be_done_exactly_is_refused(on_host: Compile) -> None:
    for definition, reason in (
        (chain(Resize(mode="shorter", size=8, filter="bicubic"), CenterCrop(size=(8, 8))), "'bicubic'"),
        (chain(Resize(mode="exact", size=(8, 8), antialias=False)), "without antialias"),
        (chain(Pad(size=(9, 9)), CenterCrop(size=(1, 1))), "may miss the image"),
    ):
        with pytest.raises(CannotCompile, match=f"{reason}.*cvcuda with resize 'exact' can"):
            on_host(definition, resize="hq")
        on_host(definition)
    for definition, reason in (
        (chain(CenterCrop(size=(8, 8)), Resize(mode="exact", size=(4, 4))), "one resize"),
        (chain(CenterCrop(size=(8, 8)), Pad(size=(9, 9), value=3)), "one value"),
        (chain(Pad(size=(9, 9), value=(1, 2, 3))), r"fills with \[1, 2, 3\]. Backends on a CPU"),
    ):
        for resize in ("exact", "hq"):
            with pytest.raises(CannotCompile, match=reason):
                on_host(definition, resize=resize)
    with pytest.raises(ValueError, match="at most 2"):
        on_host(CLASSIFY, max_batch_size=2).enqueue([b""] * 3)
    with pytest.raises(ValueError, match="uint8 NHWC"):
        on_host(CLASSIFY, output=HostDevice().stream().allocate((8, 224, 224, 3), np.uint8))


@pytest.mark.parametrize("options", [{}, {"varied": True}])
def test_a_machine_without_a_gpu_or_library_says_what_is_missing(options: dict[str, Any]) -> None:
    with pytest.raises((BackendMissing, CannotCompile), match=r"GPU|driver"):
        compile(CLASSIFY, backend="cvcuda", device="gpu", **options)


@given(sizes=st.lists(SIZES, max_size=30), most=st.integers(1, 8), pixels=st.integers(1, 40_000))
def test_groups_keep_order_and_bounds(sizes: list[Size], most: int, pixels: int) -> None:
    planner = Planner(CLASSIFY)
    planned = [Planned(index, b"", Header("JPEG", *size), planner(size)) for index, size in enumerate(sizes)]
    found = list(groups(planned, max_items=most, max_pixels=pixels))
    assert [item for group in found for item in group] == planned
    for group in found:
        assert len(group) <= most
        assert len(group) == 1 or sum(item.pixels for item in group) <= pixels


VARIED = Augmentation(
    [
        {"op": "box", "area": [0.3, 1.0]}, {"op": "flip"},
        {"op": "rotation", "degrees": [-40, 40], "probability": 0.5}, {"op": "trivial_augment"},
        {"op": "linear_color", "hue": 0.1, "brightness": 0.2}, {"op": "erase"},
    ]
)  # fmt: skip


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
    assert_same(seen, compile(definition, varied=True).run(files, varies))


def test_a_batch_stays_on_the_gpu_for_whichever_thread_asks(on_host: Compile) -> None:
    images = [photo("chelsea"), portrait("coffee"), noise(50, 40), photo("coffee")]
    files, varies = [encode(image, "PNG") for image in images], variations(CLASSIFY, images)
    files[1] = b"no picture"
    backend = on_host(CLASSIFY, varied=True)
    with ThreadPoolExecutor(1) as threads:
        batch, bad = threads.submit(backend.run_on_device, files, varies).result()
        assert [*bad] == [1]
        first, _, *others = compile(CLASSIFY, varied=True).run(files, varies)
        np.testing.assert_array_equal(view(batch), [first, *others])
        nothing, bad = threads.submit(backend.run_on_device, [b"no picture"], varies[:1]).result()
    assert nothing is None
    assert [*bad] == [0]


def test_variations_are_asked_for_when_compiling(on_host: Compile) -> None:
    file, vary = encode(photo("coffee"), "PNG"), variations(CLASSIFY, [noise(50, 40), photo("coffee")] * 4)[:1]
    for varied, given_varies in ((False, vary), (True, None)):
        with pytest.raises(ValueError, match=r"compile\(varied=True\)"):
            on_host(CLASSIFY, varied=varied).run([file], given_varies)
