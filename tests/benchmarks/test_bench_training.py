"""The training benchmarks: nothing is timed unless the loaders agree, then rounds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

PHOTOS = sorted((Path(__file__).parents[2] / "examples" / "photos").glob("*.jpg"))
MANY = PHOTOS * 16
"""As many as it takes for the means of an epoch to err by less than what is allowed; the seeds are fixed."""


@pytest.mark.slow
def test_competitors_agree_and_are_measured() -> None:
    from benchmarks.training import measure

    for case in measure.cases(None):
        differences = measure.differences(case, PHOTOS[:3], 1)
        assert next(iter(differences.values())) == 0
        assert all(difference <= case.close_enough for difference in differences.values())
        rates = measure.rounds(case, PHOTOS[:3], 1, count=1, progress=lambda _: None)
        assert set(rates) == set(case.loaders)
        assert all(len(of_loader) == 1 and min(of_loader) > 0 for of_loader in rates.values())


@pytest.mark.night
def test_random_chains_agree_and_are_measured() -> None:
    from benchmarks.training import augmented, measure

    for case in augmented.cases():
        differences = measure.differences(case, MANY, 1)
        assert differences["ours"] == 0
        assert 0 < differences["torchvision"] <= case.close_enough
        rates = measure.rounds(case, MANY[:6], 1, count=1, progress=lambda _: None)
        assert {name: len(of_loader) for name, of_loader in rates.items()} == {"ours": 1, "torchvision": 1}


@pytest.mark.slow
def test_a_loader_that_draws_from_another_distribution_is_named() -> None:
    from benchmarks.training import augmented, measure
    from benchmarks.training.measure import our_loader
    from onestream.preprocess import Decode, Definition, Resize
    from onestream.preprocess.training import Augmentation

    case, *_ = augmented.cases()
    inverted = Augmentation([{"op": "box"}, {"op": "invert", "probability": 1}])
    definition = augmented.definition(augmented.CLASSIFY_SIDE)
    plain = Definition(operations=(Decode(), Resize(mode="exact", size=(224, 224))))
    loaders = {
        "inverted": partial(our_loader, definition, train=True, augmentation=inverted),
        "levels": partial(our_loader, plain),
    }
    for name, other in loaders.items():
        opened = {"ours": case.loaders["ours"], name: lambda paths, workers, other=other: other(paths, workers=workers)}
        wrong = replace(case, loaders=opened)
        with pytest.raises(ValueError, match=f"TrivialAugment: {name} differs by"):
            measure.differences(wrong, MANY[:48], 1)
