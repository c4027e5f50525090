"""Many epochs in one process, with the memory after each: ``python -m benchmarks.training.soak FOLDER``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.training.competitors import BATCH, CLASSIFY
from onestream.preprocess.training import ImageLoader

WARM_EPOCHS = 3
"""DALI's and PyTorch's memory pools grow in the first epochs."""


def soak(folder: Path, *, epochs: int, threads: int, report: Callable[[int, float], None]) -> list[float]:
    """Resident MiB after each epoch of training batches and of a validation loader that lives for that epoch only."""
    process, resident = psutil.Process(), []
    with ImageLoader(CLASSIFY, folder, batch_size=BATCH, train=True, threads=threads) as training:
        for epoch in range(epochs):
            for _ in training:
                pass
            with ImageLoader(CLASSIFY, folder, batch_size=BATCH, threads=threads) as validation:
                for _ in validation:
                    pass
            resident.append(process.memory_info().rss / 2**20)
            report(epoch + 1, resident[-1])
    return resident


def growth(resident: list[float]) -> float:
    """Growth from the third epoch to the end, as a share: the medians of the first and last fifth after it."""
    after = resident[WARM_EPOCHS - 1 :]
    part = max(1, len(after) // 5)
    return _median(after[-part:]) / _median(after[:part]) - 1


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def main() -> int:
    """Print the resident memory after each epoch, and its growth."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.soak", description=__doc__)
    parser.add_argument("folder", type=Path, help="images, or one folder of them per class")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()

    def report(epoch: int, mib: float) -> None:
        print(f"epoch {epoch:3}: {mib:8.1f} MiB", flush=True)

    resident = soak(options.folder, epochs=options.epochs, threads=options.threads, report=report)
    if len(resident) > WARM_EPOCHS:
        print(f"growth after epoch {WARM_EPOCHS}: {growth(resident):+.2%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
