"""Counters of objects: a series for each class, and not for whatever number a network says."""

from __future__ import annotations

import importlib
from typing import Any

from triton_stand_in import TRITON, imported_anew, triton


def test_objects_are_counted_by_class_and_not_by_whatever_number_a_network_says() -> None:
    module = "onestream.serving.models.metrics"
    with imported_anew(module, **{TRITON: triton()}):
        metrics: Any = importlib.import_module(module)
        counting = metrics.ModelMetrics("detect")
        counting.objects([b"cat", b"dog", b"cat"])
        counting.objects([b"cat"])
        counting.objects(str(number).encode() for number in range(1998))
        counting.objects([b"7", b"999999", b"888888"])
        counting.close()
        name, counted = "onestream_objects_total", metrics.pb_utils.counted
        assert [counted[name, one] for one in ("cat", "dog", "7", "others")] == [3, 1, 2, 2]
        assert len(counted) == 2001
