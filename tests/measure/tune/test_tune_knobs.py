"""Which settings are tried on which machine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onestream.measure.tune.knobs import (
    Device,
    Knob,
    Value,
    differences,
    knobs_for,
    neighbours,
    sensible,
    settings,
    text,
    value_of,
    with_value,
)
from onestream.serving.engine.table import CPU_ENGINES
from onestream.serving.pipeline import CpuOptions, GpuOptions, ServingOptions

CPU = knobs_for("cpu", cores=2, concurrency=8, ensemble=False)
GPU = knobs_for("gpu", cores=16, concurrency=128, ensemble=False)


def test_a_cpu_is_tuned_by_batches_processes_threads_and_precision_where_the_network_was_calibrated() -> None:
    usual = {"max_batch_size": (1, 2, 4, 8), "cpu_instances": (1, "cores", 3), "cpu_threads": (1, 2)}
    assert {knob.field: knob.values for knob in CPU} == usual
    options = {"less_precision": "int8", "engines": ("onnxruntime", "openvino")}
    first, second, *others = knobs_for("cpu", cores=2, concurrency=8, ensemble=False, **options)
    assert (first.field, first.values, first.ordered) == ("precision", ("float32", "int8"), False)
    assert (second.field, second.values, second.ordered) == ("cpu.engine", ("onnxruntime", "openvino"), False)
    assert tuple(others) == CPU
    # Threads come first where fewer requests than cores are in flight.
    firsts = [knobs_for("cpu", cores=8, concurrency=requests, ensemble=False)[0].field for requests in (4, 8)]
    assert firsts == ["cpu_threads", "max_batch_size"]


def test_a_gpu_is_tuned_by_where_it_decodes_what_preprocesses_batches_and_overlap() -> None:
    found = {knob.field: knob.values for knob in GPU}
    expected = {
        "gpu.decode": ("gpu", "hybrid", "cpu"),
        "gpu.backend": ("cvcuda", "dali"),
        "gpu.max_batch_size": (8, 16, 32, 64, 128),
        "gpu.batches_in_flight": (1, 2, 3, 4),
        "gpu.decode_streams": (1, 2, 4, 8),
        "gpu.cpu_entropy_megapixels": (0.0, 0.25, 1.0),
    }
    assert found.items() >= expected.items()
    # An ensemble overlaps no batches of its own.
    fields = {knob.field for knob in knobs_for("gpu", cores=16, concurrency=128, ensemble=True)}
    assert fields == found.keys() - {"gpu.batches_in_flight"}


@given(
    device=st.sampled_from(["cpu", "gpu"]),
    cores=st.integers(1, 256),
    concurrency=st.integers(1, 1000),
    ensemble=st.booleans(),
    one_more=st.booleans(),
)
def test_every_value_is_allowed_and_no_batch_is_larger_than_the_load(
    device: Device, cores: int, concurrency: int, ensemble: bool, one_more: bool
) -> None:
    knobs = knobs_for(device, cores=cores, concurrency=concurrency, ensemble=ensemble, one_more=one_more)
    for knob in knobs:
        assert len(set(knob.values)) == len(knob.values) > 1
        for value in knob.values:
            options = with_value(ServingOptions(), knob.field, value)
            assert knob.of(options) == value
        if knob.field.endswith("max_batch_size"):
            assert max(knob.values) <= concurrency


# Of a fused model with a bounded queue: the number of cores itself is another setting than "cores", one process more.
ONE_MORE = knobs_for("cpu", cores=2, concurrency=8, ensemble=False, one_more=True)


@pytest.mark.parametrize(
    ("knob", "now", "up", "down"),
    [
        (CPU[1], ServingOptions(), [3], [1]),
        (CPU[1], ServingOptions(cpu_instances=1), ["cores", 3], []),
        (ONE_MORE[1], ServingOptions(), [], [2, 1]),
        # It is not listed itself.
        (CPU[0], ServingOptions(max_batch_size=6), [8], [4, 2, 1]),
    ],
)
def test_neighbours_are_the_values_beside(knob: Knob, now: ServingOptions, up: list[Value], down: list[Value]) -> None:
    assert (neighbours(knob, now, up=True), neighbours(knob, now, up=False)) == (up, down)


@pytest.mark.parametrize(
    ("device", "options", "tried"),
    [
        ("gpu", {"gpu": GpuOptions(decode_streams=2)}, True),
        ("gpu", {"gpu": GpuOptions(decode_streams=2, decode="hybrid")}, True),
        ("gpu", {"gpu": GpuOptions(decode_streams=2, decode="cpu")}, False),
        ("gpu", {"gpu": GpuOptions(decode_streams=2, backend="dali")}, False),
        ("gpu", {"gpu": GpuOptions(cpu_entropy_megapixels=1, backend="dali")}, True),
        ("gpu", {"gpu": GpuOptions(cpu_entropy_megapixels=1, decode="hybrid")}, False),
        # No more than twice as many threads as cores.
        ("cpu", {"cpu_instances": "cores", "cpu_threads": 2}, True),
        ("cpu", {"cpu_instances": "cores", "cpu_threads": 4}, False),
        ("cpu", {"cpu_instances": 1, "cpu_threads": 8}, True),
        # bfloat16 with engines that compute in it.
        *(("cpu", {"precision": "bf16", "cpu": CpuOptions(engine=one)}, one == "openvino") for one in CPU_ENGINES),
    ],
    ids=str,
)
def test_only_what_makes_sense_is_tried(device: Device, options: dict[str, Any], tried: bool) -> None:
    assert sensible(ServingOptions(**options), device=device, cores=8) == tried


def test_a_value_is_a_setting_where_the_options_take_it_and_other_fields_stay() -> None:
    options = ServingOptions(max_queue_size=64, gpu=GpuOptions(precision="fp16"))
    changed = with_value(options, "gpu.decode", "cpu")
    assert (changed.max_queue_size, changed.gpu.precision, changed.gpu.decode) == (64, "fp16", "cpu")
    assert differences(changed, options) == {"gpu.decode": "cpu"}
    assert differences(with_value(options, "precision", "int8"), options) == {"precision": "int8"}
    assert with_value(options, "max_batch_size", 0) is None
    assert with_value(options, "gpu.decode", "elsewhere") is None


def test_settings_in_words() -> None:
    assert text(settings(ServingOptions(), CPU)) == "max_batch_size 8, cpu_instances cores, cpu_threads 1"
    with pytest.raises(TypeError, match=r"serving\.gpu is "):
        value_of(ServingOptions(), "gpu")
