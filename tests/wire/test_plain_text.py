"""Text of others in what we write: it neither ends a line nor begins a formula."""

from __future__ import annotations

import pytest

from onestream.serving.built.triton_config import from_text, header, to_text
from onestream.wire.plain_text import csv_cell, first_line, one_line

BREAKS = ("\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029")


@pytest.mark.parametrize("sign", [*BREAKS, "\x1b", "\u202e", "\udc80", "\ufeff"], ids=repr)
def test_one_line_escapes_what_is_not_printable(sign: str) -> None:
    assert one_line(f"größe {sign}大") == f"größe {sign.encode('unicode_escape').decode()}大"


@pytest.mark.parametrize("sign", BREAKS, ids=repr)
def test_a_pipeline_file_of_any_name_stays_in_the_header_of_what_is_generated(sign: str) -> None:
    source = f"mine{sign}import os"
    assert len(header(source).splitlines()) == 1
    assert from_text(to_text(from_text("name: 'a'"), source=source)).name == "a"


@pytest.mark.parametrize("text", ["=1+1", "+49", "-1", "@home", "\t=1", "\r=1"], ids=repr)
def test_a_cell_that_begins_as_a_formula_gets_an_apostrophe_and_others_stay_as_they_are(text: str) -> None:
    assert csv_cell(text) == f"'{text}"
    for value in (f"a{text}", -1, -0.5, None, ""):
        assert csv_cell(value) is value


def test_an_error_is_told_in_one_line() -> None:
    assert first_line(ValueError("\n no such driver\nat 0x7f")) == "no such driver"
    assert first_line(ValueError("x" * 500)) == "x" * 200
    assert first_line(MemoryError()) == "MemoryError"
