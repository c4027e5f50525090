"""The work of every header reader grows no faster than the file, whatever it is made of; words of a refusal do not."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.hostile.headers import BUILT, measure, mutated, tiff
from onestream.preprocess import BadImage, Limits
from onestream.preprocess.headers import base
from onestream.preprocess.headers.reader import FORMATS, Header, read_header
from onestream.wire.refusals import LONGEST_REASON

SIZES = (4_000, 8_000, 16_000)
WORK_OF_A_BYTE = 8
"""A part of a file has 4 bytes and more and takes a reader about 15 lines; a byte is searched at most three times."""
WORK_OF_ANY_FILE = 3_000


class Counted:
    """What reading a header took: lines of the readers that ran, and bytes that were searched.

    A line runs a bounded number of operations on at most the file's bytes, and none of these lines is in a loop over
    anything but parts, so their number is what can get out of hand.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.work = 0
        search = base.search

        def counted_search(pattern: re.Pattern[bytes], view: memoryview, first: int) -> re.Match[bytes] | None:
            found = search(pattern, view, first)
            self.work += (found.end() if found else len(view)) - first
            return found

        monkeypatch.setattr(base, "search", counted_search)

    def read(self, file: bytes) -> Header | BadImage:
        """Read a header and count."""
        self.work = 0
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return read_header(file)
        except BadImage as error:
            return error
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if "preprocess/headers" not in frame.f_code.co_filename:
            return None
        self.work += event == "line"
        return self._trace


@pytest.fixture
def counted() -> Iterator[Counted]:
    with pytest.MonkeyPatch.context() as patches:
        yield Counted(patches)


@pytest.mark.parametrize("name", BUILT)
def test_work_grows_no_faster_than_the_file(name: str, counted: Counted) -> None:
    before = 0
    for size in SIZES:
        file = BUILT[name](size)
        counted.read(file)
        assert counted.work <= WORK_OF_A_BYTE * len(file) + WORK_OF_ANY_FILE, size
        assert not before or counted.work <= 2.2 * before + WORK_OF_ANY_FILE, size
        before = counted.work


@given(name=st.sampled_from(sorted(BUILT)), size=st.integers(500, 20_000), seed=st.integers(0, 2**32))
def test_so_does_that_of_mutated_ones(name: str, size: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patches:
        counted = Counted(patches)
        file = mutated(BUILT[name](size), random.Random(seed))
        counted.read(file)
    assert counted.work <= WORK_OF_A_BYTE * len(file) + WORK_OF_ANY_FILE


@pytest.mark.parametrize("name", BUILT)
def test_a_large_one_is_read_in_bounded_parts_and_words(name: str, counted: Counted) -> None:
    """Beyond the most parts that a file may have, nothing but searching grows."""
    file = BUILT[name](300_000)
    result = counted.read(file)
    assert counted.work < 20 * base.MAX_PARTS + 3 * len(file)
    if isinstance(result, BadImage):
        assert len(result.reason) <= LONGEST_REASON


def test_the_strips_of_a_tiff_share_its_bytes_and_its_parts() -> None:
    """Each strip is far below the most parts of a file; all of them are above."""
    for name, size, reason in (
        ("TIFF: strips that share a JPEG", 400_000, "strips or tiles overlap"),
        ("TIFF: JPEG strips of segments", 1_000_000, f"more than {base.MAX_PARTS} segments"),
    ):
        with pytest.raises(BadImage, match=reason) as caught:
            read_header(BUILT[name](size))
        assert caught.value.code == "corrupt"


def test_no_words_of_a_file_make_a_long_reason() -> None:
    extra = tiff(
        bytes(64),
        {256: ("I", [8]), 257: ("I", [8]), 258: ("H", [8]), 262: ("H", [9]), 277: ("H", [1]), 338: ("H", [7] * 60_000)},
    )
    with pytest.raises(BadImage) as caught:
        Limits().check(extra)
    assert caught.value.code == "unsupported_format"
    assert len(caught.value.reason) <= LONGEST_REASON
    assert len(BadImage("corrupt", "x" * 500_000).reason) == LONGEST_REASON
    assert len(str(BadImage("corrupt", "x" * 500_000))) < LONGEST_REASON + 40


def test_mutations_of_every_format_are_read_or_refused() -> None:
    lines: list[str] = []
    figures = measure(mutations=400, seed=3, progress=lines.append)
    assert figures["outcomes"]["other errors"] == 0
    assert min(figures["outcomes"]["read"], figures["outcomes"]["refused"]) > 30
    assert set(figures["worst_by_format"]) == set(FORMATS)
    assert all(worst["input"] for worst in figures["worst_by_format"].values())
