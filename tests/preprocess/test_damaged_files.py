"""Files that are cut or have flipped bits: refused alike, and never more than that.

Flipped bits inside compressed pixels cannot be told from a picture; a backend may then return a damaged picture where
another refuses. Nothing but a picture or ``BadImage`` may come of it, in a process that lives on.
"""

from __future__ import annotations

import random
from functools import lru_cache

import numpy as np
import pytest
from definitions import AS_IT_IS as WHOLE
from definitions import in_levels
from sample_images import CONVERTED, PLAIN, photo
from separate_process import Outcome, run_separately

from onestream.preprocess import BadImage, CenterCrop, Definition, Resize

BACKENDS = ("reference", "dali")
PART = in_levels(Resize(mode="shorter", size=32), CenterCrop(size=(20, 20)))


@lru_cache
def files() -> dict[str, bytes]:
    image = photo("chelsea").resize((51, 33))
    return {form: make(image) for form, make in (PLAIN | CONVERTED).items()}


def cut_lengths(size: int) -> list[int]:
    """Around the beginning and the end every byte, between them some."""
    every = {*range(0, 60, 5), *range(max(0, size - 16), size), *range(0, size, max(1, size // 15))}
    return sorted(length for length in every if length < size)


@lru_cache
def outcomes_of_cut_files(backend: str, definition: Definition) -> dict[tuple[str, int], Outcome]:
    cases = [(form, length) for form, file in files().items() for length in cut_lengths(len(file))]
    cut = [files()[form][:length] for form, length in cases]
    report = run_separately(cut, definition=definition, backend=backend, max_batch_size=4)
    return dict(zip(cases, report.outcomes, strict=True))


@pytest.mark.parametrize("definition", [WHOLE, PART], ids=["whole", "part"])
def test_a_cut_file_is_refused_by_both_or_whole_in_both(definition: Definition) -> None:
    """Whole means that what is missing comes after the pixels, as a TIFF's tags may."""
    reference, dali = (outcomes_of_cut_files(backend, definition) for backend in BACKENDS)
    refused = 0
    for case, expected in reference.items():
        seen = dali[case]
        assert isinstance(seen, BadImage) == isinstance(expected, BadImage), (case, seen, expected)
        if isinstance(expected, BadImage):
            refused += 1
            assert expected.code in ("empty", "corrupt", "unsupported_format"), case
        else:
            assert np.abs(seen.astype(int) - expected).max() <= 3, case
    assert refused > 0.98 * len(reference)


def test_only_bytes_that_no_decoder_needs_may_be_missing() -> None:
    whole = run_separately([*files().values()], definition=WHOLE, backend="reference").outcomes
    pictures = dict(zip(files(), whole, strict=True))
    for (form, _), outcome in outcomes_of_cut_files("reference", WHOLE).items():
        if not isinstance(outcome, BadImage):
            np.testing.assert_array_equal(outcome, pictures[form])


def with_flipped_bits(file: bytes, chosen: random.Random) -> bytes:
    data = bytearray(file)
    end = len(data) if chosen.random() < 0.5 else min(len(data), 200)
    for _ in range(chosen.choice((1, 1, 2, 8))):
        data[chosen.randrange(end)] ^= 1 << chosen.randrange(8)
    return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("definition", [WHOLE, PART], ids=["whole", "part"])
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
            assert outcome.dtype == np.uint8
            assert outcome.ndim == 3
            if definition is PART:
                assert outcome.shape == (20, 20, 3)
    assert report.grown_mib < 400


@pytest.mark.slow
def test_flipped_bits_outside_compressed_pixels_are_judged_alike() -> None:
    """A header that still makes sense gives the same size to both; BMP and plain TIFF even the same pixels."""
    chosen = random.Random(11)
    plain = [form for form in files() if form.startswith("bmp") or form in ("tiff", "tiff big endian", "tiff gray")]
    damaged = [with_flipped_bits(files()[form], chosen) for form in plain for _ in range(30)]
    reference, dali = (
        run_separately(damaged, definition=WHOLE, backend=backend, max_batch_size=2).outcomes for backend in BACKENDS
    )
    for expected, seen in zip(reference, dali, strict=True):
        assert isinstance(seen, BadImage) == isinstance(expected, BadImage), (seen, expected)
        if not isinstance(expected, BadImage):
            np.testing.assert_array_equal(seen, expected)
