"""What a report says of two readings."""

from __future__ import annotations

import pytest
from metrics_pages import between, of_model

from onestream.cli.top.report import Model, Report

FORMS = ("classify", "classify_fused", "classify_preprocess", "classify_model", "classify_postprocess")


def models(found: Report) -> dict[str, Model]:
    return {model.name: model for model in found.models}


def idle() -> dict[str, float]:
    return {named: value for form in FORMS for named, value in of_model(form).items()}


def test_means_are_of_the_interval() -> None:
    before = of_model("own", requests=10, inferences=12, executions=6, duration_us=1_000_000, queue_us=500_000)
    later = of_model(
        "own", requests=30, inferences=52, executions=16, duration_us=1_240_000, queue_us=520_000, pending=3
    )
    found = between(before, later, seconds=2.0)
    (own,) = found.models
    assert found.seconds == 2.0
    assert own.inferences == 40
    assert own.latency_ms == pytest.approx(240 / 20)
    assert own.queue_ms == pytest.approx(20 / 20)
    assert own.batch_size == 4.0
    assert own.pending == 3


def test_without_traffic_there_are_no_means() -> None:
    found = between(idle(), idle())
    for model in found.models:
        assert model.inferences == 0
        assert model.latency_ms is None
        assert model.queue_ms is None
        assert model.batch_size is None
    assert found.bottleneck is None


def test_pipelines_come_with_their_parts_below_them_and_in_the_order_of_the_data() -> None:
    found = between(idle(), idle())
    assert [model.name for model in found.models] == [
        "classify",
        "classify_preprocess",
        "classify_model",
        "classify_postprocess",
        "classify_fused",
    ]
    assert [(model.name, len(parts)) for model, parts in found.pipelines] == [("classify", 3), ("classify_fused", 0)]
    assert found.models[0].pending is None, "its parts queue"


def test_a_part_whose_pipeline_is_not_loaded_stands_alone() -> None:
    found = between({}, of_model("classify_preprocess"))
    assert [(model.name, parts) for model, parts in found.pipelines] == [("classify_preprocess", [])]


def test_versions_of_a_model_are_one() -> None:
    after = of_model("own", inferences=3)
    after |= {named.replace('version="1"', 'version="2"'): value for named, value in after.items()}
    assert models(between({}, after))["own"].inferences == 6


def test_a_bad_image_of_an_ensemble_is_one_failure_and_counted_with_its_reason() -> None:
    # Counted by Triton as it does: twice for the ensemble, not at all for the step.
    later = idle() | {
        'nv_inference_request_failure{model="classify",reason="OTHER",version="1"}': 6,
        'nv_inference_request_failure{model="classify",reason="CANCELED",version="1"}': 1,
        'nv_inference_request_failure{model="classify_model",reason="REJECTED",version="1"}': 1,
        'nv_inference_request_failure{model="classify_model",reason="OTHER",version="1"}': 0,
        'onestream_bad_images_total{model="classify_preprocess",reason="corrupt"}': 2,
        'onestream_bad_images_total{model="classify_fused",reason="empty"}': 4,
    }
    found = models(between(idle(), later))
    assert found["classify"].failures == {"CANCELED": 1, "OTHER": 3}
    assert found["classify"].bad_images == {"corrupt": 2}
    assert found["classify_preprocess"].bad_images == {"corrupt": 2}
    assert found["classify_model"].failures == {"REJECTED": 1}
    assert found["classify_fused"].bad_images == {"empty": 4}
    assert found["classify_fused"].failures == {}


def test_objects_are_told_by_class_of_the_interval_and_of_an_ensemble_those_of_its_parts() -> None:
    def detector(persons: int, dropped: int) -> dict[str, float]:
        return {
            'onestream_objects_total{label="person",model="classify_postprocess"}': persons,
            'onestream_objects_total{label="cat",model="classify_postprocess"}': 4,
            'onestream_objects_total{label="dining table",model="classify_fused"}': persons,
            'onestream_candidates_dropped_total{model="classify_postprocess"}': dropped,
        }

    found = models(between(idle() | detector(3, 1), idle() | detector(10, 6)))
    assert found["classify_postprocess"].objects == {"person": 7}, "cats are of the time before"
    assert found["classify"].objects == {"person": 7}
    assert found["classify_fused"].objects == {"dining table": 7}
    dropped = {name: one.dropped_candidates for name, one in found.items() if one.dropped_candidates}
    assert dropped == {"classify": 5, "classify_postprocess": 5}


def test_the_shares_of_a_pipelines_steps_are_its_whole_time() -> None:
    def steps(model: str, **microseconds: float) -> dict[str, float]:
        return {
            f'onestream_step_{what}_total{{model="{model}",step="{step}"}}': value
            for step, spent in microseconds.items()
            for what, value in (("microseconds", spent), ("batches", 2))
        }

    later = idle() | steps("classify_fused", network=60_000, preprocess=30_000, postprocess=10_000)
    later |= steps("classify_model", network=3_000) | steps("classify_preprocess", preprocess=1_000)
    found = models(between(idle(), later))
    fused = found["classify_fused"].steps
    assert [(step.name, step.share) for step in fused] == [("preprocess", 0.3), ("network", 0.6), ("postprocess", 0.1)]
    assert fused[1].ms_per_batch == 30.0
    assert [step.share for step in found["classify_preprocess"].steps] == [0.25]
    assert [step.share for step in found["classify_model"].steps] == [0.75]


def test_the_bottleneck_is_where_requests_wait_longest() -> None:
    later = idle()
    for name, queue_us in (("classify_preprocess", 20_000), ("classify_model", 90_000), ("classify_postprocess", 100)):
        later |= of_model(name, requests=10, inferences=10, executions=5, duration_us=200_000, queue_us=queue_us)
    bottleneck = between(idle(), later).bottleneck
    assert bottleneck.name == "classify_model"
    later |= of_model("classify_model", requests=10) | of_model("classify_preprocess", requests=10)
    assert between(idle(), later).bottleneck is None, "10 us are no wait"


def test_a_model_of_video_streams_is_told_in_frames() -> None:
    def video(inferred: int, streams: int) -> dict[str, float]:
        labels = 'model="classify_video"'
        return {
            f"onestream_video_streams{{{labels}}}": streams,
            f'onestream_video_frames_total{{{labels},what="inferred"}}': inferred,
            f'onestream_video_frames_total{{{labels},what="decoded"}}': inferred + 5 if inferred else 0,
            f'onestream_video_frames_total{{{labels},what="dropped"}}': 5 if inferred else 0,
            f"onestream_video_latency_microseconds_total{{{labels}}}": 8_000 * inferred,
            **of_model("classify_video", requests=3 * inferred, inferences=3 * inferred, executions=3 * inferred),
        }

    (model,) = between(video(0, 0), video(60, 2)).models
    assert (model.inferences, model.latency_ms) == (60, 8.0)
    assert (model.queue_ms, model.batch_size, model.pending) == (None, None, None)
    assert (model.video.streams, model.video.decoded, model.video.dropped) == (2, 65, 5)


def test_the_machine_and_its_gpus() -> None:
    after = {
        "nv_cpu_utilization": 0.25,
        "nv_cpu_memory_used_bytes": 2e9,
        "nv_cpu_memory_total_bytes": 8e9,
        'nv_gpu_utilization{gpu_uuid="GPU-b"}': 0.5,
        'nv_gpu_utilization{gpu_uuid="GPU-a"}': 0.75,
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"}': 3e9,
        'nv_gpu_memory_total_bytes{gpu_uuid="GPU-a"}': 80e9,
        'nv_gpu_power_usage{gpu_uuid="GPU-a"}': 300,
    }
    found = between({}, after)
    assert (found.cpu_utilization, found.memory_used_bytes, found.memory_total_bytes) == (0.25, 2e9, 8e9)
    one, other = found.gpus
    assert (one.uuid, one.utilization, one.memory_used_bytes, one.power_w) == ("GPU-a", 0.75, 3e9, 300)
    assert (other.uuid, other.utilization, other.memory_used_bytes, other.power_w) == ("GPU-b", 0.5, None, None)
    assert between({}, of_model("own")).cpu_utilization is None
