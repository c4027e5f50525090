"""The planted faults can be applied: each snippet is there once, and so are the tests that should find it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from faults import FAULTS, GROUPS, Fault, group_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_has_one_place_and_tests_that_should_find_it(fault: Fault) -> None:
    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.old) == 1
    assert fault.new != fault.old
    assert fault.tests
    assert [path for path in fault.tests if not (ROOT / path.partition("::")[0]).exists()] == []


def test_names_are_told_apart() -> None:
    assert [name for name, count in Counter(fault.name for fault in FAULTS).items() if count > 1] == []


def test_every_part_of_the_product_has_faults() -> None:
    counts = Counter(group_of(fault.file) for fault in FAULTS)
    assert set(counts) == set(GROUPS)
    assert {group: count for group, count in counts.items() if count < 4} == {}
