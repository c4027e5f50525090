"""Counters of objects: a series for each class, and not for whatever number a network says."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from triton_stand_in import TRITON, imported_anew, triton

MODULE = "onestream.serving.models.metrics"


@pytest.fixture
def metrics() -> Iterator[Any]:
    with imported_anew(MODULE, **{TRITON: triton()}):
        yield importlib.import_module(MODULE)


def counted(metrics: Any) -> Any:
    return metrics.pb_utils.counted


def test_objects_are_counted_by_class(metrics: Any) -> None:
    counting = metrics.ModelMetrics("detect")
    counting.objects([b"cat", b"dog", b"cat"])
    counting.objects([b"cat"])
    counting.close()
    name = "onestream_objects_total"
    assert counted(metrics) == {(name, "cat"): 3, (name, "dog"): 1}


def test_a_network_that_says_any_number_gets_no_series_for_each(metrics: Any) -> None:
    counting = metrics.ModelMetrics("detect")
    counting.objects(str(number).encode() for number in range(2000))
    counting.objects([b"7", b"999999", b"888888"])
    counting.close()
    assert len(counted(metrics)) == 2001
    assert counted(metrics)["onestream_objects_total", "7"] == 2
    assert counted(metrics)["onestream_objects_total", "others"] == 2
