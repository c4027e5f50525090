"""The pages say what the committed results say, and notice a change of either."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.competitors import CONTESTS
from benchmarks.report import __main__ as report
from benchmarks.report import gpu, served, summary
from benchmarks.report.pages import BEGIN, END, rewrite
from benchmarks.report.plots import draw_served, overload_figure
from benchmarks.result_files import RESULTS, read
from benchmarks.results import FILE_NAME, OVERLOAD, OverloadResults, Results

PNG = b"\x89PNG\r\n\x1a\n"


def test_the_committed_pages_show_the_committed_results() -> None:
    assert report.main(["--check"]) == 0


@pytest.mark.parametrize("contest", CONTESTS.values(), ids=CONTESTS)
def test_the_committed_tables_are_those_of_their_results(contest: object) -> None:
    found = sorted(RESULTS.glob(f"*/{contest.file(FILE_NAME)}"))  # type: ignore[attr-defined]
    assert found
    for path in found:
        results = Results.model_validate_json(path.read_bytes())
        assert path.with_name(contest.file("tables.md")).read_text() == served.full(results)  # type: ignore[attr-defined]


def test_a_page_is_written_between_its_markers_and_a_change_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "results.md"
    page.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nafter\n")

    def run(action: str) -> int:
        return rewrite(lambda folder: f"{folder.name} 1.21\n", [action, str(page)], command="it", results=Path("new"))

    assert [run(action) for action in ("--check", "--write", "--check")] == [1, 0, 0]
    assert page.read_text() == f"# Title\n\n{BEGIN}\nnew 1.21\n{END}\n\nafter\n"
    page.write_text(page.read_text().replace("1.21", "1.22"))
    assert run("--check") == 1
    assert f"it --write {page}" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["no markers", BEGIN, f"{END}\n{BEGIN}"])
def test_a_page_without_the_markers_is_refused(tmp_path: Path, text: str) -> None:
    page = tmp_path / "results.md"
    page.write_text(text)
    assert rewrite(lambda _folder: "new", ["--write", str(page)], command="any", results=tmp_path) == 1
    assert page.read_text() == text


def test_what_was_not_measured_is_not_invented_and_a_quick_run_says_so() -> None:
    results = read(RESULTS, FILE_NAME, Results)[0]
    only_ours = [one for one in results.served if one.competitor == results.fused]
    report = served.full(results.model_copy(update={"served": only_ours, "quick": True}))
    assert f"| images/s: {results.fused} ÷ plain | higher | – | – |" in report
    assert "no basis for a claim" in report
    assert gpu.summaries([]) == "On a GPU: not measured.\n"


def test_a_ratio_is_a_win_or_a_loss_only_where_both_quartiles_say_so() -> None:
    base = {0: 100.0, 1: 50.0, 2: 100.0}

    def verdict(*factors: float, better: str = "higher") -> str:
        ours = {number: base[number] * factor for number, factor in enumerate(factors)}
        row = summary.Row("rate", ours, "the other", base, 0, better=better)  # type: ignore[arg-type]
        return str(row).split("|")[-2].strip()

    assert verdict(1.2, 1.2, 1.2) == "better"
    assert verdict(1.2, 1.2, 1.2, better="lower") == verdict(0.8, 0.8, 0.8) == "worse"
    assert verdict(0.8, 1.0, 1.2) == "even"


def test_both_plots_are_drawn(tmp_path: Path) -> None:
    draw_served(read(RESULTS, FILE_NAME, Results)[0], tmp_path / "served.png")
    assert (tmp_path / "served.png").read_bytes().startswith(PNG)
    results = read(RESULTS, OVERLOAD, OverloadResults)[0]
    titles = [axes.get_title() for axes in overload_figure(results).axes[: len(results.forms)]]
    assert titles == results.forms


def test_a_file_that_holds_no_results_is_refused(tmp_path: Path) -> None:
    (tmp_path / OVERLOAD).write_text('{"points": []}')
    with pytest.raises(ValueError, match="machine"):
        read(tmp_path, OVERLOAD, OverloadResults)
