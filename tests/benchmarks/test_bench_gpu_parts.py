"""What the benchmark on a GPU does the same on every machine: photos, rounds, threads, agreement, the table."""

from __future__ import annotations

import io
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.gpu.agreement import Expected, Network, check_answers, check_samples, refuse
from benchmarks.gpu.competitors import settings
from benchmarks.gpu.lanes import Batch, Lanes
from benchmarks.gpu.measure import Photos, Workload, measure
from benchmarks.gpu.photos import make_photos
from benchmarks.gpu.results import FAMILIES, GpuResults, PhotoSet, Rate
from benchmarks.gpu.table import full, summaries, summary
from benchmarks.result_files import Machine
from onestream.measure.agreement import Disagreement
from onestream.preprocess import compile
from onestream.serving.pipeline import Pipeline

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "examples" / "photos").glob("*.jpg"))
PIPELINE = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml")


def test_photos_are_many_and_always_the_same() -> None:
    made = make_photos("500x375", 13, sources=SOURCES, seed=1, threads=2)
    assert len(set(made)) == 13
    assert {Image.open(io.BytesIO(one)).size for one in made} == {(500, 375)}
    assert make_photos("500x375", 13, sources=SOURCES, seed=1, threads=1) == made
    assert not set(make_photos("500x375", 13, sources=SOURCES, seed=2, threads=2)) & set(made)


def test_large_photos_have_the_bytes_of_a_cameras() -> None:
    made = make_photos("1920x1080", 2, sources=SOURCES[:2], seed=1, threads=2)
    # benchmarks/README.md: 300 to 500 KB, which pictures of other contents may miss a little.
    assert all(200_000 < len(one) < 700_000 for one in made)


def test_every_photo_comes_once_before_any_comes_again() -> None:
    contents = [bytes([index]) for index in range(10)]
    photos = Photos("500x375", contents, seed=3)
    first, second = photos.pick(10), [*photos.pick(4), *photos.pick(6)]
    assert sorted(first) == sorted(second) == contents
    assert first != second
    assert set(Counter(photos.pick(30)).values()) == {3}


@pytest.fixture
def lanes() -> Iterator[Lanes[list[int]]]:
    opened: Lanes[list[int]] = Lanes(3, list, device=None)
    yield opened
    opened.close()


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_no_more_batches_run_at_once_than_are_in_flight(lanes: Lanes[list[int]], in_flight: int) -> None:
    lock, running, most, images = threading.Lock(), 0, 0, 0

    def run(_: list[int], batch: Batch) -> None:
        nonlocal running, most, images
        with lock:
            running, images = running + 1, images + len(batch)
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1

    rate = lanes.rate(run, lambda: [b""] * 4, in_flight=in_flight, duration_s=0.1)
    assert most == in_flight
    assert running == 0
    # All of them take at least 10 ms for each 4 x in_flight.
    assert 0 < rate <= 4 * in_flight / 0.01
    assert images >= 4 * in_flight


def test_a_failure_in_a_lane_is_raised_and_the_lanes_go_on(lanes: Lanes[list[int]]) -> None:
    def fail(_: list[int]) -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        lanes.ask(fail)
    assert lanes.ask(lambda state: state) == []


def test_warming_up_reaches_every_lane(lanes: Lanes[list[int]]) -> None:
    seen: set[int] = set()
    barrier = threading.Barrier(3)

    def run(state: list[int], _: Batch) -> None:
        if id(state) not in seen:
            barrier.wait(10)
        seen.add(id(state))

    lanes.warm_up(run, lambda: [b""])
    assert len(seen) == 3


def point(lanes: Lanes[list[int]], setting: str, run: Callable[[list[int], Batch], None], batch: int = 1) -> Workload:
    return Workload("fused", setting, lanes, run, Photos("500x375", [b"a", b"b"], seed=0), batch, 1)


def test_what_fails_is_left_out_with_its_reason(lanes: Lanes[list[int]]) -> None:
    calls = 0

    def fails_later(_: list[int], __: Batch) -> None:
        nonlocal calls
        calls += 1
        if calls > 9:  # after the warm-up
            raise RuntimeError("\n\nillegal address\nat 0x7f")

    missing: dict[str, str] = {}
    rates = measure(
        [point(lanes, "good", lambda *_: time.sleep(0.001)), point(lanes, "bad", fails_later)],
        rounds=3,
        duration_s=0.01,
        deadline=time.monotonic() + 60,
        missing=missing,
        progress=lambda _: None,
    )
    assert missing == {"fused: bad": "illegal address"}
    assert [one.round for one in rates if one.setting == "good"] == [0, 1, 2]
    assert [one for one in rates if one.setting == "bad"] == []


def test_no_round_begins_that_the_time_is_too_short_for(lanes: Lanes[list[int]]) -> None:
    rates = measure(
        [point(lanes, "good", lambda *_: time.sleep(0.001))],
        rounds=5,
        duration_s=0.01,
        deadline=time.monotonic(),
        missing={},
        progress=lambda _: None,
    )
    assert [one.round for one in rates] == [0]


@pytest.fixture(scope="module")
def network(repository: Path) -> Network:
    return Network(repository / "classify_fused" / "1" / "model.onnx", PIPELINE.preprocess)


@pytest.fixture(scope="module")
def expected(network: Network) -> Expected:
    photos = make_photos("500x375", 4, sources=SOURCES, seed=5, threads=2)
    return Expected.of("500x375", photos, PIPELINE.preprocess, PIPELINE.limits, network)


def test_the_reference_agrees_with_itself_and_a_shifted_crop_does_not(network: Network, expected: Expected) -> None:
    definition = PIPELINE.preprocess
    setting = next(
        one
        for one in settings(definition, PIPELINE.limits, device=None, cores=1, batches=[1])  # type: ignore[arg-type]
        if one.family == "ours on the CPU"
    )
    same = check_samples(setting, list(expected.samples), expected, definition, network)
    assert (same.mean_levels, same.max_level, same.flipped, same.agrees) == (0, 0, 0, True)
    ours = compile(definition, backend="dali").run(expected.photos)
    found = check_samples(setting, ours, expected, definition, network)  # type: ignore[arg-type]
    assert found.max_level == pytest.approx(1, abs=0.01)
    shifted = check_samples(setting, list(np.roll(expected.samples, 1, axis=3)), expected, definition, network)
    assert not shifted.agrees
    with pytest.raises(Disagreement, match=r"disagrees at 500x375: mean .* levels from the reference"):
        refuse(shifted)
    with pytest.raises(ValueError, match="gives"):
        check_samples(setting, [sample[:, 1:] for sample in expected.samples], expected, definition, network)


def test_scores_are_probabilities_of_a_network_that_knows_the_photos(expected: Expected) -> None:
    assert expected.scores is not None
    np.testing.assert_allclose(expected.scores.sum(axis=1), 1)
    assert expected.scores.max() > 0.5


def test_ties_are_no_flips(expected: Expected) -> None:
    assert expected.scores is not None
    scores = np.full((4, 10), 0.01)
    scores[:, 3], scores[:, 5] = 0.47, 0.45
    tied = Expected(expected.size, expected.photos, expected.samples, scores)
    assert tied.flips(np.array([3, 5, 3, 5])) == 0
    assert tied.flips(np.array([3, 5, 7, 0])) == 2
    assert check_answers("fp16", np.array([3, 5, 3, 5]), tied).agrees
    assert not check_answers("fp16", np.array([3, 5, 3, 6]), tied).agrees


def rate(part: str, setting: str, per_round: list[float], **where: object) -> list[Rate]:
    about = {"size": "500x375", "batch": 64, "in_flight": 1, **where}
    return [
        Rate.model_validate({"round": index, "part": part, "setting": setting, "images_per_s": value, **about})
        for index, value in enumerate(per_round)
    ]


def made_up(**update: object) -> GpuResults:
    rates = [
        *rate("preprocess", "CV-CUDA, decode gpu", [2000, 1000, 2000], family="CV-CUDA"),
        *rate("preprocess", "CV-CUDA, decode gpu", [4000, 2000, 4000], family="CV-CUDA", in_flight=3),
        *rate("preprocess", "OpenCV, INTER_LINEAR", [200, 100, 200], family="OpenCV", batch=1),
        *rate("preprocess", "OpenCV, INTER_AREA", [100, 50, 100], family="OpenCV", batch=1),
        *rate("decode alone", "cvcuda, decode gpu", [1000, 1000, 1000]),
        *rate("network alone", "fp32", [5000, 500, 5000], size=None),
        *rate("fused", "fp32", [950, 475, 950], in_flight=2),
        *rate("fused", "fp32", [800, 400, 800]),
        *rate("served", "classify", [100, 100, 100]),
        *rate("served", "classify_fused", [150, 150, 150]),
    ]
    return GpuResults(
        started_utc="2030-01-02T03:04:05+00:00",
        commit="0123456789abcdef",
        gpu="Some GPU (tm) 80GB",
        compute_capability=(9, 0),
        machine=Machine(cpu="Some CPU", cores=16, memory_gib=8, kernel="Linux 6", system="Debian"),
        cores=16,
        versions={"cvcuda-cu12": "0.19.0"},
        seed=1,
        rounds=3,
        duration_s=0.4,
        photos=[
            PhotoSet(size="500x375", count=9, mean_kilobytes=50),
            PhotoSet(size="1920x1080", count=9, mean_kilobytes=400),
        ],
        rates=rates,
        not_measured={"preprocess: DALI on the GPU": "no DALI here"},
    ).model_copy(update=update)


def cells(table: str, beginning: str) -> list[str]:
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {beginning} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_ratios_are_of_the_fastest_settings_within_each_round() -> None:
    table = full(made_up())
    assert cells(table, "preprocessing: CV-CUDA ÷ OpenCV on all cores, batch 64") == [
        "≥ 20", "20.00 (20.00–20.00)", "not measured",
    ]  # fmt: skip
    # 950 of 1000, 475 of 500, 950 of 1000: the slower part is another one in the second round.
    assert cells(table, "fused ÷ the slower of decoding alone and network alone, fp32")[1] == "0.95 (0.95–0.95)"
    assert cells(table, "fused ÷ the slower of decoding alone and network alone, fp16")[1] == "not measured"
    assert cells(table, "served: classify_fused ÷ classify")[1] == "1.50 (1.50–1.50)"


def test_the_network_alone_stands_for_every_size() -> None:
    assert cells(full(made_up()), "images/s: network alone, fp32, in its fastest setting")[1:] == [
        "5000 (2750–5000)", "5000 (2750–5000)",
    ]  # fmt: skip


def test_what_is_missing_stands_in_the_table() -> None:
    for table in (summary(made_up()), full(made_up())):
        assert cells(table, "not measured: preprocess: DALI on the GPU") == ["", "no DALI here", ""]
        assert cells(table, "images/s: DALI on the GPU, in its fastest setting")[1:] == ["not measured"] * 2
        assert "Some GPU (tm) 80GB; Some CPU, 16 cores; 2030-01-02, commit 0123456789ab." in table
    assert made_up().slug == "some-gpu-tm-80gb"
    assert len(FAMILIES) == 4


def test_a_readme_without_results_says_that_nothing_was_measured() -> None:
    assert summaries([]) == "On a GPU: not measured.\n"
    assert summaries([made_up()]) == summary(made_up())
