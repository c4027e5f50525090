"""Memory that runs out while a picture is decoded is not the picture's fault, and harms no other one."""

from __future__ import annotations

import pickle
from functools import cache

import numpy as np
import pytest
from image_files import encode, png_of
from sample_images import photo
from separate_process import Outcome, run_separately

from onestream.preprocess import CenterCrop, Decode, Definition, OutOfMemory, Resize

CLASSIFY = Definition(operations=[Decode(), Resize(mode="shorter", size=64), CenterCrop(size=(64, 64))])
SMALL = encode(photo("coffee"), "JPEG")
FREE_MIB = 20
"""Enough for the small one, whose pixels are 0.7 MB, and not for 48 MB."""


@cache
def large(form: str) -> bytes:
    """16 million pixels."""
    if form == "png 16 bit":
        return png_of(np.zeros((4000, 4000, 3), np.uint16))
    name, options = {
        "jpeg": ("JPEG", {}),
        "jpeg progressive": ("JPEG", {"progressive": True}),
        "png": ("PNG", {"compress_level": 1}),
        "webp": ("WEBP", {"method": 0}),
        "tiff": ("TIFF", {"compression": "tiff_adobe_deflate"}),
    }[form]
    return encode(photo("coffee").resize((4000, 4000)), name, **options)


@cache
def alone(backend: str) -> Outcome:
    """What the small one gives without any bound."""
    (outcome,) = run_separately([SMALL], definition=CLASSIFY, backend=backend).outcomes
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", "dali"])
@pytest.mark.parametrize("form", ["jpeg", "jpeg progressive", "png", "png 16 bit", "webp", "tiff"])
def test_it_is_told_apart_from_damage_and_leaves_the_others_as_they_are(form: str, backend: str) -> None:
    damaged = SMALL.replace(b"\xff\xdb\x00\x43\x01", b"\xff\xdb\x00\x43\x05", 1)
    files = [SMALL, damaged, large(form), SMALL]
    report = run_separately(
        files, definition=CLASSIFY, backend=backend, max_batch_size=4, warm_up=[SMALL] * 4, free_mib=FREE_MIB
    )
    first, bad, without_memory, last = report.outcomes
    assert isinstance(without_memory, OutOfMemory), without_memory
    assert without_memory.code == "out_of_memory"
    assert "4000x4000 = 16000000 pixels" in without_memory.reason
    assert bad.code == "corrupt"
    np.testing.assert_array_equal(first, last)
    np.testing.assert_array_equal(first, alone(backend))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", "dali"])
def test_with_memory_the_same_pictures_are_decoded(backend: str) -> None:
    files = [large("jpeg"), large("webp")]
    outcomes = run_separately(files, definition=CLASSIFY, backend=backend).outcomes
    assert [getattr(outcome, "shape", outcome) for outcome in outcomes] == [(3, 64, 64)] * 2


def test_it_crosses_processes() -> None:
    error = OutOfMemory("too little")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is OutOfMemory
    assert (again.code, again.reason, str(again)) == (error.code, error.reason, str(error))
