"""The benchmark of random chains: both loaders draw from the same distributions, then rounds, then a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import summary, tables
from benchmarks.result_files import Machine
from benchmarks.training import augmented, measure
from benchmarks.training.competitors import our_loader
from benchmarks.training.results import AUGMENTED_FILE_NAME, AugmentedResults, CaseResult, augmented_table
from onestream.preprocess import Decode, Definition, Resize
from onestream.preprocess.training import Augmentation

pytestmark = pytest.mark.slow

# As many as it takes for the means of an epoch to err by less than what is allowed; the seeds are fixed.
PHOTOS = sorted((Path(__file__).parents[2] / "examples" / "photos").glob("*.jpg")) * 16


def test_competitors_agree_and_are_measured() -> None:
    for case in augmented.cases():
        differences = measure.differences(case, PHOTOS, 1)
        assert differences["ours"] == 0
        assert 0 < differences["torchvision"] <= case.close_enough
        rates = measure.rounds(case, PHOTOS[:6], 1, count=1, progress=lambda _: None)
        assert {name: len(of_loader) for name, of_loader in rates.items()} == {"ours": 1, "torchvision": 1}


def test_a_loader_that_draws_from_another_distribution_is_named() -> None:
    case, *_ = augmented.cases()
    inverted = Augmentation([{"op": "box"}, {"op": "invert", "probability": 1}])
    definition = augmented.definition(augmented.CLASSIFY_SIDE)
    loaders = {
        **case.loaders,
        "inverted": lambda paths, workers: our_loader(
            definition, paths, workers=workers, train=True, augmentation=inverted
        ),
        "levels": lambda paths, workers: our_loader(
            Definition(operations=(Decode(), Resize(mode="exact", size=(224, 224)))), paths, workers=workers
        ),
    }
    for name in ("inverted", "levels"):
        wrong = replace(case, loaders={"ours": case.loaders["ours"], name: loaders[name]})
        with pytest.raises(ValueError, match=f"TrivialAugment: {name} differs by"):
            measure.differences(wrong, PHOTOS[:48], 1)


def test_boxes_lie_in_their_pictures() -> None:
    for sample in augmented.boxed(PHOTOS[:6]):
        height, width = sample.size_hw
        assert Image.open(sample.path).size == (width, height)
        assert sample.boxes.shape == (augmented.BOXES, 4)
        assert (sample.boxes >= 0).all()
        assert (sample.boxes[:, 2:] <= (width, height)).all()
        assert (np.diff(sample.boxes.reshape(-1, 2, 2), axis=1) > 0).all()


def test_both_pages_show_what_was_measured(tmp_path: Path) -> None:
    cases = [
        CaseResult(name="TrivialAugment", size=size, images=9, images_per_s={"ours": ours, "torchvision": [100, 100]},
                   differences={"ours": 0, "torchvision": 0.02})
        for size, ours in (("500x375", [150, 170]), ("1920x1080", [90, 80]))
    ]  # fmt: skip
    machine = Machine(cpu="Some CPU", cores=2, memory_gib=8, kernel="Linux", system="Debian")
    results = AugmentedResults(
        started_utc="2026-01-02T03:04:05+00:00", commit="0123456789abcdef", machine=machine, versions={}, workers=2,
        rounds=2, cases=cases,
    )  # fmt: skip
    row = "| **ours ÷ torchvision** (TrivialAugment) | 1.60 (1.55–1.65) | 0.85 (0.83–0.88) |"
    assert row in augmented_table(results)
    (tmp_path / machine.slug).mkdir()
    (tmp_path / machine.slug / AUGMENTED_FILE_NAME).write_text(results.model_dump_json())
    assert row in tables._page(tmp_path)
    assert "| images/s for training, 1920×1080, TrivialAugment | 85 (82–88) |" in summary.table(tmp_path)
    assert summary.table(tmp_path).count("torchvision in a `DataLoader`") == 2
