"""Counters of objects: a series for each class, and not for whatever number a network says."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

MODULE = "onestream.serving.models.metrics"


class Families:
    """Stands in for Triton's metrics; ``counted`` holds what reached it, by name and labels."""

    COUNTER, GAUGE = "counter", "gauge"
    counted: ClassVar[Counter[tuple[str, str]]] = Counter()

    def __init__(self, *, name: str, **_: object) -> None:
        self._name = name

    def Metric(self, *, labels: dict[str, str]) -> Any:  # noqa: N802 (Triton's name)
        key = self._name, labels.get("label", "")
        return SimpleNamespace(increment=lambda more: self.counted.update({key: more}))


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(Families, "counted", Counter())
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", SimpleNamespace(MetricFamily=Families))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield importlib.import_module(MODULE)
    sys.modules.pop(MODULE, None)


def test_objects_are_counted_by_class(metrics: Any) -> None:
    counting = metrics.ModelMetrics("detect")
    counting.objects([b"cat", b"dog", b"cat"])
    counting.objects([b"cat"])
    counting.close()
    name = "onestream_objects_total"
    assert Families.counted == {(name, "cat"): 3, (name, "dog"): 1}


def test_a_network_that_says_any_number_gets_no_series_for_each(metrics: Any) -> None:
    counting = metrics.ModelMetrics("detect")
    counting.objects(str(number).encode() for number in range(2000))
    counting.objects([b"7", b"999999", b"888888"])
    counting.close()
    assert len(Families.counted) == 2001
    assert Families.counted["onestream_objects_total", "7"] == 2
    assert Families.counted["onestream_objects_total", "others"] == 2
