"""From raw rounds to the tables of docs/results.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_results import made_up

from benchmarks import tables
from benchmarks.competitors import DETECT
from benchmarks.result_files import read
from benchmarks.results import FILE_NAME, Results
from onestream.measure.tables import BEGIN, END

ROOT = Path(__file__).parents[2]


def row(table: str, beginning: str) -> list[str]:
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {beginning} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_ratios_are_taken_within_rounds() -> None:
    table = tables.ratios(made_up())
    assert row(table, "images/s: classify_fused ÷ plain")[1:] == ["higher", "1.60 (1.60–1.60)", "1.60 (1.60–1.60)"]
    assert row(table, "images/s: classify ÷ plain")[2] == "1.40 (1.40–1.40)"
    assert row(table, "p50 at concurrency 1: classify_fused ÷ plain")[1:3] == ["lower", "0.62 (0.62–0.62)"]
    assert row(table, "CPU time: decode to float32 ÷ bare full decode")[2] == "1.50 (1.50–1.50)"


def test_the_limit_is_the_fastest_batch_size() -> None:
    assert row(tables.ratios(made_up()), "images/s: classify_fused by gRPC ÷ in process")[2] == "0.80 (0.80–0.80)"


def test_a_detector_has_the_same_rows_and_what_its_boxes_cost() -> None:
    table = tables.ratios(made_up("detect"))
    assert row(table, "images/s: detect_fused ÷ plain")[1:] == ["higher", "1.60 (1.60–1.60)", "1.60 (1.60–1.60)"]
    assert row(table, "images/s: detect_fused by gRPC ÷ in process")[2] == "0.80 (0.80–0.80)"
    # 0.25 ms of the tail's nodes and 0.125 ms on the host.
    boxes = "CPU ms an image: from outputs to boxes, score threshold 0.05"
    assert row(table, boxes)[1:3] == ["lower", "0.38 (0.38–0.38)"]
    assert boxes not in tables.ratios(made_up())
    overlap = next(line for line in tables.full(made_up("detect")).splitlines() if "| 0.985 |" in line)
    assert "detect_fused" in overlap


def test_a_cascade_has_rows_of_its_own_and_none_of_preprocessing_alone() -> None:
    results = made_up("read")
    table = tables.ratios(results)
    assert "| 640×480 |" in table
    assert row(table, "images/s: read_fused ÷ plain")[2] == "1.60 (1.60–1.60)"
    # 140 images/s of 160.
    assert row(table, "images/s: read ÷ read_fused")[1:] == ["higher", "0.88 (0.88–0.88)"]
    # 16 ms of 200.
    assert row(table, "CPU time: everything but the networks ÷ the networks")[1:] == ["lower", "0.08 (0.08–0.08)"]
    assert "preprocessing" not in table
    assert "full decode" not in table
    agreement = next(line for line in tables.full(results).splitlines() if "99.5%" in line)
    assert agreement == "| 640×480 | 20 of 20 | read_fused | 0.0125 | 0.750 | 99.5% |"
    assert "same texts by all" in tables.full(results)


def test_what_was_not_measured_is_not_invented() -> None:
    assert row(tables.ratios(made_up()), "images/s: classify_fused ÷ plain, HTTP")[2:] == ["–", "–"]


def test_a_loss_is_shown_like_a_win() -> None:
    results = made_up()
    slower = [
        one.model_copy(update={"export": one.export.model_copy(update={"inferences_per_s": 50.0})})
        if one.competitor == "classify"
        else one
        for one in results.served
    ]
    table = tables.ratios(results.model_copy(update={"served": slower}))
    assert row(table, "images/s: classify ÷ plain")[2] == "0.50 (0.50–0.75)"


def test_the_full_report_says_where_and_how_it_was_measured() -> None:
    report = tables.full(made_up())
    for expected in ("Some CPU (tm), 2 cores", "2030-01-02", "0123456789ab", "3 rounds of 6 s", "python 3.11"):
        assert expected in report
    assert "no basis for a claim" not in report
    assert "no basis for a claim" in tables.full(made_up().model_copy(update={"quick": True}))


def test_use_by_other_programs_is_told() -> None:
    results = made_up()
    disturbed = [results.served[0].model_copy(update={"others_cpu_share": 0.5}), *results.served[1:]]
    assert "up to 50% of the machine" in tables.full(results.model_copy(update={"served": disturbed}))
    assert "Other programs" not in tables.full(results)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "results.md"
    path.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    return path


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results" / made_up().machine.slug
    folder.mkdir(parents=True)
    (folder / FILE_NAME).write_text(made_up().model_dump_json())
    return folder.parent


def test_write_replaces_what_is_between_the_markers_and_check_agrees(page: Path, results: Path) -> None:
    assert tables.main(["--check", str(page), "--results", str(results)]) == 1
    assert tables.main(["--write", str(page), "--results", str(results)]) == 0
    assert tables.main(["--check", str(page), "--results", str(results)]) == 0
    text = page.read_text()
    assert text.startswith("# Title\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "1.60 (1.60–1.60)" in text


def test_check_notices_a_changed_number(page: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables.main(["--write", str(page), "--results", str(results)])
    page.write_text(page.read_text().replace("1.60", "1.70"))
    assert tables.main(["--check", str(page), "--results", str(results)]) == 1
    assert "--write" in capsys.readouterr().err


def test_a_page_holds_every_pipeline_that_was_measured(page: Path, results: Path) -> None:
    detect = results / made_up().machine.slug / DETECT.file(FILE_NAME)
    tables.main(["--write", str(page), "--results", str(results)])
    assert "detect_fused" not in page.read_text()
    detect.write_text(made_up("detect").model_dump_json())
    tables.main(["--write", str(page), "--results", str(results)])
    text = page.read_text()
    assert text.index("classify_fused ÷ plain") < text.index("detect_fused ÷ plain")
    assert f"/{made_up().machine.slug}/throughput.png)" in text
    assert f"/{made_up().machine.slug}/detect-throughput.png)" in text


@pytest.mark.parametrize("text", ["no markers", BEGIN, f"{END}\n{BEGIN}"])
def test_a_file_without_the_markers_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.md"
    path.write_text(text)
    assert tables.main(["--write", str(path), "--results", str(tmp_path)]) == 1
    assert path.read_text() == text


def test_results_survive_their_file(results: Path) -> None:
    (found,) = read(results, FILE_NAME, Results)
    assert found == made_up()
    assert isinstance(found, Results)


def test_the_folder_of_a_machine_has_a_plain_name() -> None:
    assert made_up().machine.slug == "some-cpu-tm-2-cores"


def test_the_page_shows_the_committed_results() -> None:
    assert tables.main(["--check", str(ROOT / "docs" / "results.md")]) == 0
