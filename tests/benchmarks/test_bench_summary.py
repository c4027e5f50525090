"""The README's one table is made from the result files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_results import made_up

from benchmarks import scale_out_table, summary
from benchmarks.competitors import DETECT, READ
from benchmarks.results import FILE_NAME, Results

ROOT = Path(__file__).parents[2]


def written(folder: Path, results: Results) -> Path:
    """A folder of results with those of one machine."""
    (folder / results.machine.slug).mkdir(parents=True)
    (folder / results.machine.slug / FILE_NAME).write_text(results.model_dump_json())
    return folder


def rows(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_readme_shows_the_committed_results() -> None:
    assert summary.main(["--check", str(ROOT / "README.md")]) == 0


def test_gains_and_losses_are_named(tmp_path: Path) -> None:
    table = summary.table(written(tmp_path, made_up()))
    assert table.startswith("Some CPU (tm), 2 cores, no GPU.")
    found = rows(table)
    assert found[0][:5] == [
        "images/s, photos of 500×375",
        "160 (120–160)",
        "the usual ensemble, at its best setting",
        "100 (75–100)",
        "1.60 (1.60–1.60)",
    ]
    # More images/s is better, so are fewer milliseconds; the code without a server is faster than with one.
    assert [row[-1] for row in found] == ["better", "better", "better", "worse"]


def test_a_detector_has_rows_of_its_own_where_it_was_measured(tmp_path: Path) -> None:
    folder = written(tmp_path, made_up())
    detect = made_up("detect")
    (folder / detect.machine.slug / DETECT.file(FILE_NAME)).write_text(detect.model_dump_json())
    found = rows(summary.table(folder))
    assert [row[0].startswith("boxes found: ") for row in found] == [False] * 4 + [True] * 4
    assert found[4][:2] == ["boxes found: images/s, photos of 500×375", "160 (120–160)"]


def test_reading_has_one_row_where_it_was_measured(tmp_path: Path) -> None:
    read = made_up("read")
    (tmp_path / read.machine.slug).mkdir()
    (tmp_path / read.machine.slug / READ.file(FILE_NAME)).write_text(read.model_dump_json())
    assert rows(summary.table(tmp_path)) == [
        ["text read: images/s, ten lines on 640×480", "160.0 (120.0–160.0)", "rapidocr in Triton, at its best setting",
         "100.0 (75.0–100.0)", "1.60 (1.60–1.60)", "better"],
    ]  # fmt: skip


def test_scale_out_is_compared_with_a_server_and_with_nothing_around_it(tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    machine.mkdir()
    one = {"in process": 100.0, "bulk --ray": 90.0, "bulk": 60.0}
    (machine / scale_out_table.FILE_NAME).write_text(json.dumps({"size": "1920x1080", "rounds": [one]}))
    assert rows(summary.table(tmp_path)) == [
        ["images/s of `bulk --ray`, photos of 1920×1080", "90", "`bulk` and a server", "60", "1.50", "better"],
        ["images/s of `bulk --ray`, photos of 1920×1080", "90", "the same code without Ray", "100", "0.90", "worse"],
    ]


def test_a_slower_network_is_a_loss_and_an_equal_one_is_even(tmp_path: Path) -> None:
    results = made_up()

    def with_rate(per_s: float) -> Results:
        export = {"inferences_per_s": per_s}
        served = [
            one.model_copy(update={"export": one.export.model_copy(update=export)})
            if one.competitor == "classify_fused"
            else one
            for one in results.served
        ]
        return results.model_copy(update={"served": served})

    assert rows(summary.table(written(tmp_path / "slow", with_rate(40.0))))[0][-1] == "worse"
    equal = [row for row in results.served if row.competitor == "plain"]
    copies = [one.model_copy(update={"competitor": "classify_fused"}) for one in equal]
    same = results.model_copy(update={"served": [*equal, *copies]})
    assert rows(summary.table(written(tmp_path / "same", same)))[0][-1] == "even"


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    only_ours = [one for one in made_up().served if one.competitor == "classify_fused"]
    table = summary.table(written(tmp_path, made_up().model_copy(update={"served": only_ours})))
    assert rows(table)[0][1:5] == ["not measured", "the usual ensemble, at its best setting", "not measured", "–"]


def test_results_of_two_machines_are_not_mixed(tmp_path: Path) -> None:
    results = made_up()
    written(tmp_path, results)
    written(tmp_path, results.model_copy(update={"machine": results.machine.model_copy(update={"cpu": "Other"})}))
    with pytest.raises(ValueError, match="one machine; as much was measured on other-2-cores, some-cpu-tm-2-cores"):
        summary.table(tmp_path)
    # The one on which most was measured is shown, and nothing of the other.
    one = {"in process": 100.0, "bulk --ray": 90.0, "bulk": 60.0}
    more = {"size": "1920x1080", "rounds": [one]}
    (tmp_path / "other-2-cores" / scale_out_table.FILE_NAME).write_text(json.dumps(more))
    table = summary.table(tmp_path)
    assert table.startswith("Other, 2 cores")
    assert "Some CPU" not in table
    assert len(rows(table)) == len(rows(summary.table(written(tmp_path / "alone", results)))) + 2
