"""Results made up for the tests: round numbers, so that every ratio in a table is known."""

from __future__ import annotations

from benchmarks.competitors import CONTESTS
from benchmarks.photos import Photo, Size
from benchmarks.plan import MAIN_LOAD, ONE_AT_A_TIME, competitors
from benchmarks.result_files import Machine
from benchmarks.results import Agreement, Competitor, CpuTime, InProcess, PlainTrial, Results, Served
from onestream.measure.load.perf_analyzer import Export, Load, Transport

RATES = (100.0, 140.0, 160.0)
"""Of plain, ours and ours fused."""


def served(
    competitor: Competitor, size: Size, load: Load, round_index: int, *, transport: Transport = "grpc"
) -> Served:
    """A measurement in which every third round runs at half speed."""
    place = 0 if competitor == "plain" else 2 if competitor.endswith("_fused") else 1
    rate = RATES[place] / (2 if round_index % 3 == 2 else 1)
    return Served(
        round=round_index,
        size=size,
        competitor=competitor,
        part="whole",
        model=competitor,
        transport=transport,
        load=load,
        export=Export(
            inferences_per_s=rate,
            mean_ms=1000 / rate,
            p50_ms=1000 / rate,
            p90_ms=2000 / rate,
            p95_ms=3000 / rate,
            p99_ms=4000 / rate,
            server_ms={},
        ),
        images_per_execution=2.0,
        server_cpu_ms=5.0,
        others_cpu_share=0.01,
    )


def made_up(pipeline: str = "classify") -> Results:
    """Three rounds of every size; shared memory and HTTP are left out."""
    sizes = CONTESTS[pipeline].sizes
    milliseconds = {"bare decode": 2.0, "definition": 3.0, "pixels": 2.5}
    least_overlap, equal_texts = {}, {}
    if pipeline == "detect":
        milliseconds |= {"network": 18.0, "network with tail": 18.25, "boxes": 0.125}
        least_overlap = {"detect_fused": 0.985}
    if pipeline == "read":
        milliseconds = {"networks": 200.0, "everything but the networks": 16.0}
        least_overlap, equal_texts = {"read_fused": 0.75}, {"read_fused": 0.995}
    return Results(
        started_utc="2030-01-02T03:04:05+00:00",
        pipeline=pipeline,
        quick=False,
        seed=1,
        rounds=3,
        duration_s=6,
        commit="0123456789abcdef",
        machine=Machine(cpu="Some CPU (tm)", cores=2, memory_gib=8, kernel="Linux 6", system="Debian"),
        versions={"python": "3.11"},
        photos=[Photo("cat.jpg", size, "cat.png", 50_000, "00") for size in sizes],
        agreement=[
            Agreement(
                size=size,
                tolerance=0.03,
                best_classes_equal=20,
                photos=20,
                largest_difference={f"{pipeline}_fused": 0.0125},
                least_overlap=least_overlap,
                equal_texts=equal_texts,
            )
            for size in sizes
        ],
        plain_setting=dict.fromkeys(sizes, "2 instances"),
        plain_trials=[PlainTrial(round=0, size=size, setting="2 instances", inferences_per_s=100) for size in sizes],
        served=[
            served(competitor, size, load, index)
            for index in range(3)
            for size in sizes
            for load in (ONE_AT_A_TIME, MAIN_LOAD)
            for competitor in competitors(pipeline)
        ],
        in_process=[
            InProcess(round=index, size=size, batch=batch, processes=2, images_per_s=rate / (2 if index == 2 else 1))
            for index in range(3)
            for size in sizes
            for batch, rate in ((1, 150.0), (4, 200.0))
        ],
        cpu_time=[CpuTime(round=index, size=size, milliseconds=milliseconds) for index in range(3) for size in sizes],
    )
