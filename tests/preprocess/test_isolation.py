"""Bad input hurts only itself: in a batch, over time, and whatever form the bytes come in."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pytest
from image_files import encode, jpeg_declaring
from sample_images import PHOTOS, PLAIN, photo, portrait
from separate_process import run_separately

from onestream.preprocess import BadImage, CenterCrop, Compiled, Decode, Definition, Limits, Normalize, Resize, compile
from onestream.preprocess.backends.batches import Planned, plan_batch
from onestream.preprocess.headers import reader
from onestream.preprocess.plan import Planner

BACKENDS = ("reference", "dali")
CLASSIFY = Definition(
    operations=[
        Decode(),
        Resize(mode="shorter", size=128),
        CenterCrop(size=(112, 112)),
        Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    ]
)
COFFEE = encode(photo("coffee"), "JPEG", quality=90)
DAMAGED_SCAN = COFFEE[: len(COFFEE) // 3] + b"\xff\xd9"
"""Ends early, but with an end marker: decoders fill the rest, so this is not a bad image."""

BAD = {
    "empty": b"",
    "text": b"hello, this is not an image",
    "cut JPEG": COFFEE[: len(COFFEE) // 2],
    "bomb": jpeg_declaring(30_000, 30_000),
    "GIF": encode(photo("coffee").resize((20, 20)), "GIF"),
    "JPEG that only the decoder refuses": COFFEE.replace(b"\xff\xdb\x00\x43\x01", b"\xff\xdb\x00\x43\x05", 1),
    "PNG that only the decoder refuses": encode(photo("rocket").resize((90, 60)), "PNG")[:-60] + bytes(48)
    + encode(photo("rocket"), "PNG")[-12:],
}  # fmt: skip
ONLY_THE_DECODER_KNOWS = [name for name in BAD if name.endswith("only the decoder refuses")]


@lru_cache
def good_files() -> tuple[bytes, ...]:
    """95 different images of several formats and sizes."""
    forms = ("jpeg 4:2:0", "jpeg 4:4:4", "jpeg EXIF 6", "png", "webp", "bmp", "tiff deflate")
    files = []
    for number in range(95):
        image = photo(PHOTOS[number % len(PHOTOS)])
        image = image.resize((60 + 7 * (number % 13), 50 + 5 * (number % 11)))
        files.append(PLAIN[forms[number % len(forms)]](image))
    return tuple(files)


@lru_cache
def alone(backend: str) -> tuple[npt.NDArray[np.float32], ...]:
    compiled = compile(CLASSIFY, backend=backend, max_batch_size=1)
    results = [compiled.run([file])[0] for file in good_files()]
    assert not any(isinstance(result, BadImage) for result in results)
    return tuple(results)


def judged(images: Sequence[npt.NDArray[np.uint8]]) -> list[Planned | BadImage]:
    """What the backends for a GPU do before they use it."""
    planned, bad = plan_batch(images, Planner(CLASSIFY), Limits())
    good = iter(planned)
    return [bad[index] if index in bad else next(good) for index in range(len(images))]


@pytest.mark.parametrize("name", sorted(set(BAD) - set(ONLY_THE_DECODER_KNOWS)))
@pytest.mark.parametrize("backend", [*BACKENDS, "gpu"])
def test_an_error_that_is_kept_holds_no_picture(backend: str, name: str) -> None:
    run = judged if backend == "gpu" else compile(CLASSIFY, backend=backend).run
    images = [np.frombuffer(file, np.uint8) for file in (COFFEE, BAD[name])]
    pictures = [weakref.ref(image) for image in images]
    # Python's collector would find what holds itself only after many thousands of pictures.
    gc.disable()
    try:
        kept = run(images)[1]
        run([COFFEE])
        del images
        assert [picture() is None for picture in pictures] == [True, True]
    finally:
        gc.enable()
    assert isinstance(kept, BadImage)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bad_images_are_told_apart(backend: str) -> None:
    bad = {name: compile(CLASSIFY, backend=backend).run([file])[0] for name, file in BAD.items()}
    assert {name: error.code for name, error in bad.items()} == {
        "empty": "empty",
        "text": "unsupported_format",
        "cut JPEG": "corrupt",
        "bomb": "too_many_pixels",
        "GIF": "unsupported_format",
        "JPEG that only the decoder refuses": "corrupt",
        "PNG that only the decoder refuses": "corrupt",
    }
    for error in bad.values():
        assert str(error) == f"bad image ({error.code}): {error.reason}"
        # Nothing of the program shows.
        assert not any(inner in error.reason for inner in ("Traceback", "0x7f", ".py"))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("max_batch_size", [1, 7, 128])
def test_five_bad_ones_among_a_hundred_change_nothing(backend: str, max_batch_size: int) -> None:
    compiled = compile(CLASSIFY, backend=backend, max_batch_size=max_batch_size)
    for seed in range(2):
        chosen = random.Random(1000 * max_batch_size + seed)
        names = [*chosen.sample([*BAD], 3), *ONLY_THE_DECODER_KNOWS]
        batch: list[tuple[str, bytes]] = [("", file) for file in good_files()]
        places = chosen.sample(range(100), 5) if seed else [0, 1, 50, 98, 99]
        for place, name in zip(sorted(places), names, strict=True):
            batch.insert(place, (name, BAD[name]))
        results = compiled.run([file for _, file in batch])
        assert len(results) == 100
        assert [isinstance(result, BadImage) for result in results] == [bool(name) for name, _ in batch]
        good = [result for result in results if not isinstance(result, BadImage)]
        for seen, expected in zip(good, alone(backend), strict=True):
            np.testing.assert_array_equal(seen, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_bad_and_none_at_all(backend: str) -> None:
    compiled = compile(CLASSIFY, backend=backend, max_batch_size=3)
    assert compiled.run([]) == []
    assert all(isinstance(result, BadImage) for result in compiled.run([*BAD.values()] * 3))
    np.testing.assert_array_equal(compiled.run([good_files()[0]])[0], alone(backend)[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_are_not_overwritten_by_the_next_batch(backend: str) -> None:
    """DALI gives out memory that it uses again."""
    for definition in (CLASSIFY, CLASSIFY.pixels(), CLASSIFY.stage("decode")):
        compiled = compile(definition, backend=backend, max_batch_size=2)
        first = compiled.run(good_files()[:2])
        copies = [np.array(result) for result in first]
        compiled.run(good_files()[2:4])
        for result, copy in zip(first, copies, strict=True):
            np.testing.assert_array_equal(result, copy)


def test_threads_batches_and_runs_do_not_change_a_bit() -> None:
    for threads in (1, 2, 4):
        compiled = compile(CLASSIFY, backend="dali", max_batch_size=16, threads=threads)
        for _ in range(3):
            for seen, expected in zip(compiled.run(good_files()), alone("dali"), strict=True):
                np.testing.assert_array_equal(seen, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["jpeg 4:2:0", "webp EXIF 5", "png", "jpeg EXIF 6"])
def test_bytes_may_come_in_any_buffer(backend: str, form: str) -> None:
    file = PLAIN[form](portrait("rocket"))
    array = np.frombuffer(file, np.uint8)
    longer = np.frombuffer(b"x" + file + b"y", np.uint8)
    assert not array.flags.writeable
    buffers = [file, bytearray(file), memoryview(file), array, array.copy(), longer[1:-1], memoryview(longer)[1:-1]]
    buffers.append(Limits().checked(array))
    first, *others = compile(CLASSIFY, backend=backend, max_batch_size=3).run(buffers)
    assert not isinstance(first, BadImage)
    for other in others:
        np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_header_that_is_handed_on_is_not_read_again(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = [Limits().checked(file) for file in good_files()[:3]]
    monkeypatch.setattr(reader, "_READERS", ())
    assert [Limits().checked(one) for one in checked] == checked
    found = compile(CLASSIFY, backend=backend, max_batch_size=3).run(checked)
    assert not any(isinstance(one, BadImage) for one in found)


def test_buffers_are_not_changed() -> None:
    for form in ("jpeg EXIF 6", "webp EXIF 5", "png EXIF 8"):
        file = bytearray(PLAIN[form](portrait("rocket")))
        before = bytes(file)
        compile(CLASSIFY, backend="dali").run([file])
        assert file == before


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_stays_flat_over_hundreds_of_bad_images(backend: str) -> None:
    mixed = [*BAD.values(), *good_files()[:2]] * 20
    report = run_separately(mixed, definition=CLASSIFY, backend=backend, max_batch_size=8, warm_up=mixed[:100])
    assert sum(isinstance(outcome, BadImage) for outcome in report.outcomes) == 20 * len(BAD)
    assert report.grown_mib < 30


def test_an_image_that_ends_early_with_an_end_marker_is_the_same_picture_everywhere() -> None:
    decode = CLASSIFY.stage("decode")
    reference, dali = (compile(decode, backend=backend).run([DAMAGED_SCAN])[0] for backend in BACKENDS)
    np.testing.assert_array_equal(reference, dali)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_closed_backend_can_be_replaced(backend: str) -> None:
    for _ in range(3):
        compiled: Compiled = compile(CLASSIFY, backend=backend)
        np.testing.assert_array_equal(compiled.run([good_files()[3]])[0], alone(backend)[3])
        compiled.close()
