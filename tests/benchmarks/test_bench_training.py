"""The training benchmarks: agreement first, then rounds, then a table that hides nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.result_files import Machine, read
from benchmarks.training import measure
from benchmarks.training.results import FILE_NAME, CaseResult, Parity, TrainingResults, table
from benchmarks.training.soak import growth
from onestream.serving.pipeline import Pipeline

ROOT = Path(__file__).parents[2]
PARITY = Parity(images=9, largest_level=1, share_equal=0.9, share_within_one=1, flipped=2)
PHOTOS = sorted((ROOT / "examples" / "photos").glob("*.jpg"))


def test_competitors_agree_and_are_measured() -> None:
    for case in measure.cases(None):
        differences = measure.differences(case, PHOTOS, 1)
        assert next(iter(differences.values())) == 0
        assert all(difference <= case.close_enough for difference in differences.values())
        rates = measure.rounds(case, PHOTOS, 1, count=2, progress=lambda _: None)
        assert set(rates) == set(case.loaders)
        assert all(len(of_loader) == 2 and min(of_loader) > 0 for of_loader in rates.values())


def test_a_loader_that_does_something_else_is_named() -> None:
    case, other = measure.cases(None)
    mixed = measure.Case("mixed", {"ours": case.loaders["ours"], "wrong": other.loaders["OpenCV"]}, close_enough=0.01)
    with pytest.raises(ValueError, match="mixed: wrong"):
        measure.differences(mixed, PHOTOS, 1)


def test_the_loader_equals_serving() -> None:
    pipeline = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml")
    assert measure.share_equal_to_serving(pipeline, PHOTOS) == 1


def test_dali_is_within_a_level_and_flips_nothing(repository: Path) -> None:
    pipeline = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml")
    found = measure.parity(pipeline, repository / "classify_model" / "1" / "model.onnx", PHOTOS)
    assert (found.images, found.largest_level, found.share_within_one, found.flipped) == (len(PHOTOS), 1, 1.0, 0)
    assert 0.8 < found.share_equal < 1


def test_a_soak_reports_every_epoch(tmp_path: Path) -> None:
    for photo in PHOTOS:
        shutil.copy(photo, tmp_path)
    # A process of its own: in this one, other tests' memory comes and goes.
    command = [sys.executable, "-m", "benchmarks.training.soak", str(tmp_path), "--epochs", "40", "--threads", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = re.findall(r"^epoch +(\d+): +([\d.]+) MiB$", done.stdout, re.MULTILINE)
    assert [int(epoch) for epoch, _ in lines] == list(range(1, 41))
    resident = [float(mib) for _, mib in lines]
    # A pipeline that is not freed costs 10 MiB or more an epoch. What is freed is used again after about ten epochs.
    assert resident[-1] - resident[11] < 28 * 5


def test_growth_compares_the_end_with_the_third_epoch() -> None:
    assert growth([10, 50, *[100] * 10]) == 0
    assert growth([10, 50, *(100 + n for n in range(10))]) == pytest.approx(0.0792, abs=1e-4)


def test_the_table_shows_wins_and_losses(tmp_path: Path) -> None:
    case = CaseResult(
        name="resize", size="500x375", images=9, images_per_s={"ours": [100, 120], "OpenCV": [200, 200]},
        differences={"ours": 0, "OpenCV": 1.5},
    )  # fmt: skip
    machine = Machine(cpu="Some CPU", cores=2, memory_gib=8, kernel="Linux", system="Debian")
    results = TrainingResults(
        started_utc="2026-01-02T03:04:05+00:00", commit="0123456789abcdef", machine=machine, versions={}, workers=2,
        rounds=2, cases=[case], equal_to_serving={"500x375": 1.0},
        parity={"500x375": PARITY}, resident_mib=[300.0, 301.5], growth=0.005,
    )  # fmt: skip
    assert "| **ours ÷ OpenCV** (resize) | 0.55 (0.53–0.57) |" in table(results)
    assert "| images equal to serving in every bit | 100% |" in table(results)
    assert "| images with another best class | 2 of 9 |" in table(results)
    (tmp_path / machine.slug).mkdir()
    (tmp_path / machine.slug / "training.json").write_text(results.model_dump_json())
    assert read(tmp_path, FILE_NAME, TrainingResults) == [results]
