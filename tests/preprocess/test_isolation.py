"""Bad input hurts only itself: in a batch, over time, in whatever form the bytes come, and where memory runs out.

Flipped bits inside compressed pixels cannot be told from a picture; a backend may then return a damaged picture where
another refuses. Nothing but a picture or ``BadImage`` may come of it, in a process that lives on.
"""

from __future__ import annotations

import gc
import pickle
import random
import weakref
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from definitions import AS_IT_IS, IMAGENET, chain, in_levels
from image_files import encode, jpeg_declaring, png_of, with_unknown_tables
from same_samples import assert_same
from sample_images import CONVERTED, PHOTOS, PLAIN, photo, portrait
from separate_process import run_separately

from onestream.preprocess import BadImage, CenterCrop, Definition, Limits, OutOfMemory, Resize, compile
from onestream.preprocess.backends.batches import Planned, plan_batch
from onestream.preprocess.headers import reader
from onestream.preprocess.plan import Planner

BACKENDS = ("reference", "dali")
CLASSIFY = chain(Resize(mode="shorter", size=128), CenterCrop(size=(112, 112)), IMAGENET)
COFFEE = encode(photo("coffee"), "JPEG", quality=90)

BAD = {
    "empty": b"",
    "text": b"hello, this is not an image",
    "cut JPEG": COFFEE[: len(COFFEE) // 2],
    "bomb": jpeg_declaring(30_000, 30_000),
    "GIF": encode(photo("coffee").resize((20, 20)), "GIF"),
    "JPEG that only the decoder refuses": with_unknown_tables(COFFEE),
    "PNG that only the decoder refuses": encode(photo("rocket").resize((90, 60)), "PNG")[:-60] + bytes(48)
    + encode(photo("rocket"), "PNG")[-12:],
}  # fmt: skip
ONLY_THE_DECODER_KNOWS = [name for name in BAD if name.endswith("only the decoder refuses")]


@lru_cache
def good_files() -> tuple[bytes, ...]:
    """95 different images of several formats and sizes."""
    forms = ("jpeg 4:2:0", "jpeg 4:4:4", "jpeg EXIF 6", "png", "webp", "bmp", "tiff deflate")
    images = [
        photo(PHOTOS[number % len(PHOTOS)]).resize((60 + 7 * (number % 13), 50 + 5 * (number % 11)))
        for number in range(95)
    ]
    return tuple(PLAIN[forms[number % len(forms)]](image) for number, image in enumerate(images))


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
    compiled = compile(CLASSIFY, backend=backend, max_batch_size=3)
    errors = compiled.run([*BAD.values()])
    codes = ["empty", "unsupported_format", "corrupt", "too_many_pixels", "unsupported_format", "corrupt", "corrupt"]
    assert [error.code for error in errors] == codes
    for error in errors:
        assert str(error) == f"bad image ({error.code}): {error.reason}"
        # Nothing of the program shows.
        assert not any(inner in error.reason for inner in ("Traceback", "0x7f", ".py"))
    assert compiled.run([]) == []
    for _ in range(3):
        np.testing.assert_array_equal(compiled.run([good_files()[3]])[0], alone(backend)[3])
        # A closed backend can be replaced.
        compiled.close()
        compiled = compile(CLASSIFY, backend=backend)


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
        assert [isinstance(result, BadImage) for result in results] == [bool(name) for name, _ in batch]
        assert_same([result for result in results if not isinstance(result, BadImage)], alone(backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_are_not_overwritten_by_the_next_batch(backend: str) -> None:
    """DALI gives out memory that it uses again."""
    for definition in (CLASSIFY, CLASSIFY.pixels(), CLASSIFY.stage("decode")):
        compiled = compile(definition, backend=backend, max_batch_size=2)
        first = compiled.run(good_files()[:2])
        copies = [np.array(result) for result in first]
        compiled.run(good_files()[2:4])
        assert_same(first, copies)


def test_threads_batches_and_runs_do_not_change_a_bit() -> None:
    for threads in (1, 2, 4):
        compiled = compile(CLASSIFY, backend="dali", max_batch_size=16, threads=threads)
        for _ in range(3):
            assert_same(compiled.run(good_files()), alone("dali"))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["jpeg 4:2:0", "webp EXIF 5", "png", "png EXIF 8", "jpeg EXIF 6"])
def test_bytes_may_come_in_any_buffer(backend: str, form: str) -> None:
    file = PLAIN[form](portrait("rocket"))
    array, writable = np.frombuffer(file, np.uint8), bytearray(file)
    longer = np.frombuffer(b"x" + file + b"y", np.uint8)
    assert not array.flags.writeable
    buffers = [file, writable, memoryview(file), array, array.copy(), longer[1:-1], memoryview(longer)[1:-1]]
    buffers.append(Limits().checked(array))
    found = compile(CLASSIFY, backend=backend, max_batch_size=3).run(buffers)
    assert not isinstance(found[0], BadImage)
    assert_same(found, found[:1] * len(buffers))
    assert writable == file, "a buffer is changed"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_header_that_is_handed_on_is_not_read_again(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = [Limits().checked(file) for file in good_files()[:3]]
    monkeypatch.setattr(reader, "_READERS", ())
    assert [Limits().checked(one) for one in checked] == checked
    found = compile(CLASSIFY, backend=backend, max_batch_size=3).run(checked)
    assert not any(isinstance(one, BadImage) for one in found)


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_stays_flat_over_hundreds_of_bad_images(backend: str) -> None:
    mixed = [*BAD.values(), *good_files()[:2]] * 20
    report = run_separately(mixed, definition=CLASSIFY, backend=backend, max_batch_size=8, warm_up=mixed[:100])
    assert sum(isinstance(outcome, BadImage) for outcome in report.outcomes) == 20 * len(BAD)
    assert report.grown_mib < 30


SQUARES = chain(Resize(mode="shorter", size=64), CenterCrop(size=(64, 64)))
FREE_MIB = 20
"""Enough for ``COFFEE``, whose pixels are 0.7 MB, and not for 48 MB."""


LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "jpeg": ("JPEG", {}),
    "jpeg progressive": ("JPEG", {"progressive": True}),
    "png": ("PNG", {"compress_level": 1}),
    "webp": ("WEBP", {"method": 0}),
    "tiff": ("TIFF", {"compression": "tiff_adobe_deflate"}),
}


@cache
def large(form: str) -> bytes:
    """16 million pixels."""
    if form == "png 16 bit":
        return png_of(np.zeros((4000, 4000, 3), np.uint16))
    name, options = LARGE[form]
    return encode(photo("coffee").resize((4000, 4000)), name, **options)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", [*LARGE, "png 16 bit"])
def test_too_little_memory_is_told_apart_from_damage_and_leaves_the_others_as_they_are(form: str, backend: str) -> None:
    files = [COFFEE, with_unknown_tables(COFFEE), large(form), COFFEE]
    sizes = {"max_batch_size": 4, "warm_up": [COFFEE] * 4, "free_mib": FREE_MIB}
    first, bad, without_memory, last = run_separately(files, definition=SQUARES, backend=backend, **sizes).outcomes
    assert isinstance(without_memory, OutOfMemory), without_memory
    assert without_memory.code == "out_of_memory"
    assert "4000x4000 = 16000000 pixels" in without_memory.reason
    assert bad.code == "corrupt"
    (alone,) = compile(SQUARES, backend=backend).run([COFFEE])
    for one in (first, last):
        np.testing.assert_array_equal(one, alone)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_with_enough_memory_the_same_pictures_are_decoded(backend: str) -> None:
    outcomes = run_separately([large("jpeg"), large("webp")], definition=SQUARES, backend=backend).outcomes
    assert [getattr(outcome, "shape", outcome) for outcome in outcomes] == [(3, 64, 64)] * 2


def test_too_little_memory_crosses_processes() -> None:
    error = OutOfMemory("too little")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is OutOfMemory
    assert (again.code, again.reason, str(again)) == (error.code, error.reason, str(error))


PART = in_levels(Resize(mode="shorter", size=32), CenterCrop(size=(20, 20)))


@lru_cache
def files() -> dict[str, bytes]:
    image = photo("chelsea").resize((51, 33))
    return {form: make(image) for form, make in (PLAIN | CONVERTED).items()}


def cut_lengths(size: int) -> list[int]:
    """Around the beginning and the end every byte, between them some."""
    every = {*range(0, 60, 5), *range(max(0, size - 16), size), *range(0, size, max(1, size // 15))}
    return sorted(length for length in every if length < size)


@pytest.mark.parametrize("definition", [AS_IT_IS, PART], ids=["whole", "part"])
def test_a_cut_file_is_refused_by_both_or_whole_in_both(definition: Definition) -> None:
    """Whole means that what is missing comes after the pixels, as a TIFF's tags may."""
    cases = [(form, length) for form, file in files().items() for length in cut_lengths(len(file))]
    cut = [files()[form][:length] for form, length in cases]
    reference, dali = (
        run_separately([*cut, *files().values()], definition=definition, backend=backend, max_batch_size=4).outcomes
        for backend in BACKENDS
    )
    pictures, refused = dict(zip(files(), reference[len(cut) :], strict=True)), 0
    for case, expected, seen in zip(cases, reference, dali, strict=False):
        assert isinstance(seen, BadImage) == isinstance(expected, BadImage), (case, seen, expected)
        if isinstance(expected, BadImage):
            refused += 1
            assert expected.code in ("empty", "corrupt", "unsupported_format"), case
        else:
            np.testing.assert_array_equal(expected, pictures[case[0]], err_msg=str(case))
            assert np.abs(seen.astype(int) - expected).max() <= 3, case
    assert refused > 0.98 * len(cases)


def with_flipped_bits(file: bytes, chosen: random.Random) -> bytes:
    data = bytearray(file)
    end = len(data) if chosen.random() < 0.5 else min(len(data), 200)
    for _ in range(chosen.choice((1, 1, 2, 8))):
        data[chosen.randrange(end)] ^= 1 << chosen.randrange(8)
    return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("definition", [AS_IT_IS, PART], ids=["whole", "part"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_flipped_bits_end_in_a_picture_or_a_refusal(backend: str, definition: Definition) -> None:
    chosen = random.Random(7)
    damaged = [with_flipped_bits(file, chosen) for file in files().values() for _ in range(12)]
    report = run_separately(damaged, definition=definition, backend=backend, max_batch_size=3)
    assert len(report.outcomes) == len(damaged)
    for outcome in report.outcomes:
        if isinstance(outcome, BadImage):
            assert outcome.code != "bad_request"
        else:
            assert (outcome.dtype, outcome.ndim) == (np.uint8, 3)
            assert definition is not PART or outcome.shape == (20, 20, 3)
    assert report.grown_mib < 400


@pytest.mark.slow
def test_flipped_bits_outside_compressed_pixels_are_judged_alike() -> None:
    """A header that still makes sense gives the same size to both; BMP and plain TIFF even the same pixels."""
    chosen = random.Random(11)
    plain = [form for form in files() if form.startswith("bmp") or form in ("tiff", "tiff big endian", "tiff gray")]
    damaged = [with_flipped_bits(files()[form], chosen) for form in plain for _ in range(30)]
    runs = [run_separately(damaged, definition=AS_IT_IS, backend=name, max_batch_size=2) for name in BACKENDS]
    for expected, seen in zip(*(run.outcomes for run in runs), strict=True):
        assert isinstance(seen, BadImage) == isinstance(expected, BadImage), (seen, expected)
        if not isinstance(expected, BadImage):
            np.testing.assert_array_equal(seen, expected)
