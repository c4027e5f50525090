"""What a report says of two readings, and what its table looks like."""

from __future__ import annotations

import io
import json

import pytest
from metrics_pages import between, of_model
from rich.console import Console

from onestream.cli.top.report import Model, Report
from onestream.cli.top.view import as_dict, table

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
    assert (found.seconds, own.inferences, own.batch_size, own.pending) == (2.0, 40, 4.0, 3)
    assert own.latency_ms == pytest.approx(240 / 20)
    assert own.queue_ms == pytest.approx(20 / 20)


def test_without_traffic_there_are_no_means_and_pipelines_have_their_parts_below_in_the_order_of_the_data() -> None:
    found = between(idle(), idle())
    parts = ["classify_preprocess", "classify_model", "classify_postprocess"]
    assert [model.name for model in found.models] == ["classify", *parts, "classify_fused"]
    assert [(model.name, len(parts)) for model, parts in found.pipelines] == [("classify", 3), ("classify_fused", 0)]
    assert found.models[0].pending is None, "its parts queue"
    for model in found.models:
        assert (model.inferences, model.latency_ms, model.queue_ms, model.batch_size) == (0, None, None, None)
    assert found.bottleneck is None
    alone = between({}, of_model("classify_preprocess"))
    assert [(model.name, parts) for model, parts in alone.pipelines] == [("classify_preprocess", [])]


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


# ---- the table, at the widths of terminals --------------------------------------------------------------------------

STEPS = {
    "preprocess": ("decode", "resize"),
    "model": ("model",),
    "postprocess": ("postprocess",),
    "fused": ("network", "read"),
}
LONG = "segmentation_of_warehouse_pallets_v12"
GPU, OTHER_GPU = ('gpu_uuid="GPU-12345678-90ab-cdef-1234-567890abcdef"', 'gpu_uuid="GPU-00000000"')


def busy(pipeline: str = "classify") -> Report:
    """A second of much traffic, with errors, on a machine with a GPU, as wide as numbers get."""
    many = {"requests": 12345, "inferences": 12345}
    after = of_model(pipeline, **many, executions=12345, duration_us=12_345_000_000)
    for part, steps in STEPS.items():
        name = f"{pipeline}_{part}"
        after |= of_model(name, **many, executions=100, duration_us=10**9, queue_us=10**8, pending=12345)
        for step in steps:
            after[f'onestream_step_microseconds_total{{model="{name}",step="{step}"}}'] = 99_999_000
            after[f'onestream_step_batches_total{{model="{name}",step="{step}"}}'] = 1000
    after |= {
        f'nv_inference_request_failure{{model="{pipeline}",reason="OTHER",version="1"}}': 2468,
        f'nv_inference_request_failure{{model="{pipeline}_model",reason="REJECTED",version="1"}}': 20,
        f'onestream_bad_images_total{{model="{pipeline}_preprocess",reason="corrupt"}}': 1000,
        f'onestream_bad_images_total{{model="{pipeline}_preprocess",reason="too_many_pixels"}}': 234,
        f'onestream_video_streams{{model="{pipeline}_video"}}': 12,
        f'onestream_video_frames_total{{model="{pipeline}_video",what="inferred"}}': 300,
        f'onestream_video_frames_total{{model="{pipeline}_video",what="decoded"}}': 360,
        f'onestream_video_frames_total{{model="{pipeline}_video",what="dropped"}}': 60,
        f'onestream_video_latency_microseconds_total{{model="{pipeline}_video"}}': 8_000 * 300,
        **of_model(f"{pipeline}_video", requests=900, inferences=900, executions=900),
        "nv_cpu_utilization": 1,
        "nv_cpu_memory_used_bytes": 123.4e9,
        "nv_cpu_memory_total_bytes": 256e9,
        f"nv_gpu_utilization{{{GPU}}}": 0.87,
        f"nv_gpu_memory_used_bytes{{{GPU}}}": 71.2e9,
        f"nv_gpu_memory_total_bytes{{{GPU}}}": 80e9,
        f"nv_gpu_power_usage{{{GPU}}}": 651.4,
        f"nv_gpu_utilization{{{OTHER_GPU}}}": 0.5,
    }
    return between(of_model(f"{pipeline}_model"), after)


def drawn(found: Report, width: int) -> list[str]:
    """The lines of a terminal of that width, without colours."""
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(table(found))
    return [line.rstrip() for line in console.export_text().splitlines()]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_everything_is_there_and_nothing_is_cut(width: int) -> None:
    lines = drawn(busy(), width)
    assert max(map(len, lines)) <= width
    assert not [line for line in lines if "…" in line]
    rows = {line.split()[0]: line.split()[1:] for line in lines if line and not line.startswith(("failed", "bad"))}
    assert rows["classify"] == ["12345.0", "1000.0", "–", "–", "–", "1234.0", "1234.0"]
    assert rows["model"] == ["12345.0", "81.0", "8.1", "123.45", "12345", "20.0", "0.0", "100.0", "25%"]
    assert rows["classify_fused"] == ["12345.0", "81.0", "8.1", "123.45", "12345", "0.0", "0.0"]
    assert rows["decode"] == ["100.0", "25%"]
    assert rows["network"] == ["100.0", "50%"]
    assert rows["classify_video"] == ["300.0", "8.0", "–", "–", "–", "0.0", "0.0"]
    text = " ".join(" ".join(lines).split())
    for told in (
        "CPU 100% memory 123.4 of 256.0 GB over 1.0 s",
        "GPU-00000000 50% memory –",
        "GPU-12345678 87% memory 71.2 of 80.0 GB 651 W",
        "failed, classify: OTHER 1234.0/s",
        "failed, classify_model: REJECTED 20.0/s",
        "bad, classify_preprocess: corrupt 1000.0/s, too_many_pixels 234.0/s",
        "classify_video: streams open 12, frames decoded 360.0/s, dropped 60.0/s",
        "Requests wait longest before classify_",
    ):
        assert told in text
    assert "bad, classify:" not in text, "an ensemble's steps report their own bad images"


def test_what_a_detector_found_stands_below_the_most_frequent_classes_first() -> None:
    after = of_model("detect_fused", requests=1) | {
        f'onestream_objects_total{{label="class {number}",model="detect_fused"}}': number for number in range(1, 8)
    }
    after['onestream_candidates_dropped_total{model="detect_fused"}'] = 3
    lines = drawn(between({}, after, seconds=2.0), 120)
    (found,) = (line for line in lines if line.startswith("found"))
    assert found == (
        "found, detect_fused: class 7 3.5/s, class 6 3.0/s, class 5 2.5/s, class 4 2.0/s, class 3 1.5/s, 2 more classes"
    )
    assert "not finite, detect_fused: 1.5/s of the network's values" in lines


def test_long_names_are_folded_so_that_numbers_stay() -> None:
    lines = drawn(busy(LONG), 80)
    assert max(map(len, lines)) <= 80
    names = "".join(line[:17].strip() for line in lines)
    assert f"{LONG}preprocess" in names
    assert all(row.split()[-1].endswith("%") for row in lines if row.startswith(("    decode", "  postprocess")))


def test_without_traffic_there_are_zeros_and_dashes_and_without_models_it_says_so() -> None:
    at_rest = {**of_model("own"), 'onestream_step_batches_total{model="own",step="network"}': 5}
    lines = drawn(between(at_rest, at_rest), 80)
    assert lines[0] == "CPU –   memory –   over 1.0 s"
    assert lines[-1].split() == ["own", "0.0", "–", "–", "–", "0", "0.0", "0.0", "–", "–"]
    assert "no models" in drawn(between({"go_goroutines": 5}, {}), 80)[-1]


def test_brackets_in_names_are_no_markup() -> None:
    after = {'nv_inference_request_failure{model="own",reason="[red]",version="1"}': 1, **of_model("own")}
    assert drawn(between({}, after), 80)[-1] == "failed, own: [red] 1.0/s"


def test_json_has_the_counts() -> None:
    found = json.loads(json.dumps(as_dict(busy())))
    models = {model["name"]: model for model in found["models"]}
    assert found["seconds"] == 1.0
    assert found["bottleneck"] in models
    assert models["classify"]["parts"] == [f"classify_{part}" for part in ("preprocess", "model", "postprocess")]
    assert models["classify"]["inferences"] == models["classify"]["inferences_per_s"] == 12345
    assert models["classify"]["failures"] == {"OTHER": 1234}
    assert models["classify"]["bad_images"] == {"corrupt": 1000, "too_many_pixels": 234}
    assert models["classify_model"]["steps"] == [
        {"name": "model", "batches": 1000, "milliseconds": 99999.0, "share": 0.25, "ms_per_batch": 99.999}
    ]
    video = models["classify_video"]
    assert (video["inferences"], video["latency_ms"]) == (300, 8.0), "latency is per frame"
    assert (video["queue_ms"], video["batch_size"], video["pending"]) == (None, None, None)
    assert video["video"] == {"streams": 12, "decoded": 360, "dropped": 60}
    assert (found["cpu_utilization"], found["memory_used_bytes"], found["memory_total_bytes"]) == (1, 123.4e9, 256e9)
    gpus = [(gpu["uuid"][:12], gpu["utilization"], gpu["memory_used_bytes"], gpu["power_w"]) for gpu in found["gpus"]]
    assert gpus == [("GPU-00000000", 0.5, None, None), ("GPU-12345678", 0.87, 71.2e9, 651.4)]
