"""What the table looks like, at the widths of terminals."""

from __future__ import annotations

import io
import json

import pytest
from metrics_pages import between, of_model
from rich.console import Console

from onestream.cli.top.report import Report
from onestream.cli.top.view import as_dict, table

PARTS = ("preprocess", "model", "postprocess")
LONG = "segmentation_of_warehouse_pallets_v12"


def busy(pipeline: str = "classify") -> Report:
    """A second of much traffic, with errors, on a machine with a GPU, as wide as numbers get."""
    after = of_model(pipeline, requests=12345, inferences=12345, executions=12345, duration_us=12_345_000_000)
    for part in (*PARTS, "fused"):
        name = f"{pipeline}_{part}"
        after |= of_model(
            name, requests=12345, inferences=12345, executions=100, duration_us=10**9, queue_us=10**8, pending=12345
        )
        for step in (
            ("decode", "resize") if part == "preprocess" else ("network", "read") if part == "fused" else (part,)
        ):
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
        **of_model(f"{pipeline}_video", requests=1),
        "nv_cpu_utilization": 1,
        "nv_cpu_memory_used_bytes": 123.4e9,
        "nv_cpu_memory_total_bytes": 256e9,
        'nv_gpu_utilization{gpu_uuid="GPU-12345678-90ab-cdef-1234-567890abcdef"}': 0.87,
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-12345678-90ab-cdef-1234-567890abcdef"}': 71.2e9,
        'nv_gpu_memory_total_bytes{gpu_uuid="GPU-12345678-90ab-cdef-1234-567890abcdef"}': 80e9,
        'nv_gpu_power_usage{gpu_uuid="GPU-12345678-90ab-cdef-1234-567890abcdef"}': 651.4,
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
    assert rows["classify_video"] == ["300.0", "0.0", "–", "–", "–", "0.0", "0.0"]
    text = " ".join(" ".join(lines).split())
    assert "CPU 100% memory 123.4 of 256.0 GB over 1.0 s" in text
    assert "GPU-12345678 87% memory 71.2 of 80.0 GB 651 W" in text
    assert "failed, classify: OTHER 1234.0/s" in text
    assert "failed, classify_model: REJECTED 20.0/s" in text
    assert "bad, classify_preprocess: corrupt 1000.0/s, too_many_pixels 234.0/s" in text
    assert "bad, classify:" not in text, "they are told where they were found"
    assert "classify_video: streams open 12, frames decoded 360.0/s, dropped 60.0/s" in text
    assert "Requests wait longest before classify_" in text


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


def test_without_traffic_there_are_zeros_and_dashes() -> None:
    at_rest = {**of_model("own"), 'onestream_step_batches_total{model="own",step="network"}': 5}
    lines = drawn(between(at_rest, at_rest), 80)
    assert lines[0] == "CPU –   memory –   over 1.0 s"
    assert lines[-1].split() == ["own", "0.0", "–", "–", "–", "0", "0.0", "0.0", "–", "–"]


def test_a_page_without_models_says_so() -> None:
    assert "no models" in drawn(between({"go_goroutines": 5}, {}), 80)[-1]


def test_brackets_in_names_are_no_markup() -> None:
    after = {'nv_inference_request_failure{model="own",reason="[red]",version="1"}': 1, **of_model("own")}
    lines = drawn(between({}, after), 80)
    assert lines[-1] == "failed, own: [red] 1.0/s"


def test_json_has_the_counts() -> None:
    found = json.loads(json.dumps(as_dict(busy())))
    models = {model["name"]: model for model in found["models"]}
    assert found["seconds"] == 1.0
    assert found["bottleneck"] in models
    assert models["classify"]["parts"] == [f"classify_{part}" for part in PARTS]
    assert models["classify"]["inferences"] == models["classify"]["inferences_per_s"] == 12345
    assert models["classify"]["failures"] == {"OTHER": 1234}
    assert models["classify"]["bad_images"] == {"corrupt": 1000, "too_many_pixels": 234}
    assert models["classify_model"]["steps"] == [
        {"name": "model", "batches": 1000, "milliseconds": 99999.0, "share": 0.25, "ms_per_batch": 99.999}
    ]
    assert models["classify_video"]["video"] == {"streams": 12, "decoded": 360, "dropped": 60}
    assert found["gpus"][0]["utilization"] == 0.87
