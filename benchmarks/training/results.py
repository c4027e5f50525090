"""What a run of the training benchmarks writes down, and its tables."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from benchmarks.photos import Size, title
from benchmarks.result_files import FROZEN, Machine, short_commit
from onestream.measure.spread import Spread, ratio
from onestream.measure.tables import NOT_MEASURED, markdown

FILE_NAME, AUGMENTED_FILE_NAME = "training.json", "augmentation.json"


class CaseResult(BaseModel):
    """One comparison at one photo size: images/s of each loader by round, the first loader being ours.

    ``differences``: mean difference of each loader's images from ours, in units of the output.
    """

    model_config = FROZEN

    name: str
    size: Size
    images: int
    images_per_s: dict[str, list[float]]
    differences: dict[str, float]

    def ours_over(self, other: str) -> Spread | None:
        """Our images/s divided by another loader's, round by round."""
        ours, theirs = self.images_per_s["ours"], self.images_per_s[other]
        return ratio(dict(enumerate(ours)), dict(enumerate(theirs)))


class Parity(BaseModel):
    """DALI against the reference after the crop: levels, shares of the values, images with another best class."""

    model_config = FROZEN

    images: int
    largest_level: int
    share_equal: float
    share_within_one: float
    flipped: int


class LoaderResults(BaseModel):
    """What every run that compares loaders writes down."""

    model_config = FROZEN

    started_utc: str
    commit: str
    machine: Machine
    versions: dict[str, str]
    workers: int
    rounds: int
    cases: list[CaseResult]

    def about(self, what: str) -> str:
        """The line above a table of ``what``."""
        return (
            f"{what}, {self.workers} threads against {self.workers} worker processes; "
            f"{self.started_utc[:10]}, commit {short_commit(self.commit)}. Median (quartiles) of {self.rounds} rounds."
        )


class AugmentedResults(LoaderResults):
    """Everything of one run of ``augmented``, whose ``differences`` are those of channels and boxes over an epoch."""


class TrainingResults(LoaderResults):
    """Everything of one run.

    ``equal_to_serving``: share of the images of each size for which the loader gives what serving computes, bit by bit.
    ``resident_mib``: memory after each epoch of the soak; ``growth`` as ``soak.growth`` states it.
    """

    equal_to_serving: dict[Size, float]
    parity: dict[Size, Parity]
    resident_mib: list[float]
    growth: float


def augmented_table(results: AugmentedResults) -> str:
    """The table of random chains in docs/results.md."""
    sizes = list(dict.fromkeys(case.size for case in results.cases))
    about = results.about("Augmentation in the training loader")
    return f"{about}\n\n{_by_size(_rates(results.cases), sizes)}"


def table(results: TrainingResults) -> str:
    """The table of one run in docs/results.md."""
    sizes = list(results.equal_to_serving)
    about = results.about("Training loader")
    rows = _rates(results.cases)
    rows["images equal to serving in every bit"] = {
        size: f"{share:.0%}" for size, share in results.equal_to_serving.items()
    }
    rows["DALI against the reference after the crop: largest difference, levels"] = {
        size: f"{one.largest_level}" for size, one in results.parity.items()
    }
    rows["values equal / within one level"] = {
        size: f"{one.share_equal:.2%} / {one.share_within_one:.2%}" for size, one in results.parity.items()
    }
    rows["images with another best class"] = {
        size: f"{one.flipped} of {one.images}" for size, one in results.parity.items()
    }
    memory = (
        f"Memory over {len(results.resident_mib)} epochs, growth after the third: {results.growth:+.2%} "
        f"(at the end {results.resident_mib[-1]:.0f} MiB)."
    )
    return f"{about}\n\n{_by_size(rows, sizes)}\n{memory}\n"


def _rates(cases: Sequence[CaseResult]) -> dict[str, dict[Size, str]]:
    """Images/s of each loader and ours divided by each other one's, by quantity and size."""
    rows: dict[str, dict[Size, str]] = {}
    for case in cases:
        for name, rates in case.images_per_s.items():
            row = rows.setdefault(f"images/s: {name} ({case.name})", {})
            row[case.size] = Spread.of(rates).text(0)
            if name != "ours" and not name.startswith("ours,"):
                spread = case.ours_over(name)
                rows.setdefault(f"**ours ÷ {name}** ({case.name})", {})[case.size] = (
                    spread.text(2) if spread else NOT_MEASURED
                )
    return rows


def _by_size(rows: dict[str, dict[Size, str]], sizes: Sequence[Size]) -> str:
    cells = [[name, *(row.get(size, NOT_MEASURED) for size in sizes)] for name, row in rows.items()]
    return markdown(["quantity", *map(title, sizes)], cells)
