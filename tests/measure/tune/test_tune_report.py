"""What a run tells: sentences, table, plot."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from onestream.measure.tune.decide import Measurement
from onestream.measure.tune.images import Images
from onestream.measure.tune.knobs import Value
from onestream.measure.tune.report import Again, ImagesUsed, Quartiles, Report, Row, decision
from onestream.measure.tune.table import tabulate
from onestream.postprocess.agreement import Agreement

PHOTOS = Path(__file__).parents[3] / "examples" / "photos"
NOW: dict[str, Value] = {"max_batch_size": 4, "cpu_instances": "cores", "cpu_threads": 1}
FEW: dict[str, Value] = NOW | {"max_batch_size": 2}
USUAL: dict[str, Value] = NOW | {"max_batch_size": 8}


def quartiles(median: float) -> Quartiles:
    return Quartiles(median=median, low=median * 0.99, high=median * 1.02)


def row(settings: dict[str, Value], speed: float, *, better: bool = False, needed_gain: float = 0.02) -> Row:
    return Row(
        settings=settings,
        samples=[Measurement(images_per_s=speed, p50_ms=30.0, p99_ms=61.4)],
        images_per_s=quartiles(speed),
        p50_ms=30.0,
        p99_ms=61.4,
        to_best_before=quartiles(speed / 200),
        to_defaults=quartiles(speed / 200),
        needed_gain=needed_gain,
        better=better,
        reason="images/s +1.0%; 2.0% needed",
    )


def images() -> ImagesUsed:
    files = sorted(PHOTOS.glob("*.jpg"))
    return ImagesUsed.of(Images({str(file): file.read_bytes() for file in files}, {"bad.jpg": "corrupt: cut"}, 7))


def report(*rows: Row, chosen: dict[str, Value] = NOW, again: Again | None = None, **others: object) -> Report:
    fields: dict[str, object] = {
        "pipeline_file": "pipelines/classify.yaml",
        "model": "classify_fused",
        "device": "cpu",
        "cores": 2,
        "images": images(),
        "tool": "perf_analyzer 9",
        "concurrency": 8,
        "p99_limit_ms": None,
        "rounds": 6,
        "measurement_s": 2.5,
        "minutes": 5.0,
        "least_minutes": 2,
        "start": NOW,
        "defaults": USUAL,
        "chosen": chosen,
        "rows": [row(NOW, 200), *rows],
        "again": again,
        "out_of_time": False,
        "keeps_limit": None,
    }
    return Report.model_validate(fields | others)


def measured_again(*, confirmed: bool, to_start: float | None) -> Again:
    return Again(
        winner=FEW,
        confirmed=confirmed,
        reason="images/s +0.4%; 2.0% needed",
        to_start=None if to_start is None else quartiles(to_start),
        to_defaults=quartiles(1.25),
        rows=[row(NOW, 300), row(USUAL, 310), row(FEW, 320)],
    )


FOUND = report(row(FEW, 220, better=True), chosen=FEW, again=measured_again(confirmed=True, to_start=1.10))
FAILED = Row(settings=USUAL, samples=[], reason="no memory")


def test_a_gain_is_told_with_the_second_measurement() -> None:
    assert FOUND.changes == {"max_batch_size": 2}
    assert decision(FOUND) == (
        "Chosen: max_batch_size 2 (now: max_batch_size 4). Measured again side by side: 1.10 (1.09–1.12) times the "
        "images/s of what the file says now, 1.25 (1.24–1.27) times those of the defaults."
    )
    # Where the best fails again, the defaults can be what is chosen.
    again = measured_again(confirmed=False, to_start=1.3).model_copy(update={"to_defaults": None})
    said = decision(report(row(USUAL, 260, better=True), row(FEW, 270, better=True), chosen=USUAL, again=again))
    assert said.startswith("Chosen: max_batch_size 8 (now: max_batch_size 4). Measured again side by side: 1.30")
    assert "max_batch_size 2 seemed best, but not when it was measured again" in said


NOT_BETTER = "the one setting tried was not better by more than the noise."
REPEATED = report(row(FEW, 210, better=True), again=measured_again(confirmed=False, to_start=None))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (report(out_of_time=True), "no time was left to try another; --minutes 2 or more is needed.$"),
        (report(row(FEW, 201)), NOT_BETTER),
        (
            report(row(FEW, 201), row(USUAL, 180), out_of_time=True),
            "of 2 settings tried, none was better .*The time was up before all was tried; more than --minutes 5 ",
        ),
        (REPEATED, r"size 2 seemed best, but not when it was measured again \(images/s \+0.4%; 2.0% needed\)."),
        (report(row(FEW, 201, needed_gain=0.12)), f"{NOT_BETTER} Speeds varied much: only gains above 12% could be "),
        (report(keeps_limit=False, p99_limit_ms=20.0), "No setting that was tried keeps p99 within 20 ms at concurr"),
    ],
)
def test_why_the_file_is_kept(found: Report, said: str) -> None:
    assert found.changes == {}
    assert re.search(f"^Kept as it is.*{said}", decision(found))


def test_int8_is_never_told_without_what_it_answers() -> None:
    agreement = Agreement(
        measure="best classes that are the same", share=0.987, of=152, mean_change=0.01, largest_change=0.2
    )
    now, in_int8 = ({"precision": precision} | NOW for precision in ("float32", "int8"))
    rows = [row(now, 300), row(in_int8, 440)]
    again = measured_again(confirmed=True, to_start=1.45).model_copy(update={"winner": in_int8, "rows": rows})
    found = report(row(in_int8, 440, better=True), chosen=in_int8, again=again, start=now, defaults=now)
    found = found.model_copy(update={"agreements": {"classify": agreement}, "rows": rows})
    assert "by its certificate: classify: best classes that are the same: 0.987 of 152." in decision(found)
    text = StringIO()
    Console(file=text, width=80).print(tabulate(found))
    lines = [line.strip() for line in text.getvalue().splitlines()]
    for index, line in enumerate(lines):
        if line.startswith("precision int8"):
            assert lines[index + 1].startswith("classify agrees 0.987")
    assert sum(line.startswith("precision int8") for line in lines) == 2
    assert "…" not in text.getvalue()


def test_the_plot_shows_every_setting_that_was_measured(tmp_path: Path) -> None:
    from onestream.measure.tune.plot import draw

    sizes = []
    best = row(FEW, 220, better=True)
    for rows in ([], [best, row(USUAL, 190), FAILED]):
        draw(report(*rows, chosen=FEW, p99_limit_ms=50.0), tmp_path / "tune.png")
        picture = np.asarray(Image.open(tmp_path / "tune.png").convert("RGB"))
        sizes.append(picture.shape[0])
        blue = (picture == (0x1F, 0x6F, 0xB4)).all(axis=-1)
        assert blue.any() == bool(rows), "the chosen setting is drawn in blue"
    assert sizes[0] < sizes[1]
    draw(FOUND, tmp_path / "tune.svg")
    assert "again: max_batch_size 2 (chosen)" in (tmp_path / "tune.svg").read_text()
