"""``python -m benchmarks.training``: measure the loaders, then write training.json and print its table."""

from __future__ import annotations

import argparse
import platform
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.competitors import PIPELINE, ROOT
from benchmarks.photos import SIZES, PhotosMissing, Size, photo_set
from benchmarks.results import commit, this_machine
from benchmarks.training import measure, soak
from benchmarks.training.results import FILE_NAME, CaseResult, Parity, TrainingResults, table
from onestream.serving.pipeline import Pipeline
from onestream.serving.server.fit import usable_cores

CACHE = ROOT / ".cache" / "benchmarks"
RESULTS = ROOT / "benchmarks" / "results"
NETWORK = ROOT / "model_repository" / "classify_model" / "1" / "model.onnx"
_PACKAGES = ("torch", "torchvision", "nvidia-dali-cuda120", "pillow", "opencv-python-headless", "numpy")
_REPEAT: dict[Size, int] = {"500x375": 80, "1920x1080": 24}


def main() -> int:
    """Run; returns the exit status."""
    options = _options()
    workers = usable_cores()
    started, transform = datetime.now(timezone.utc), measure.torchvision_transform()
    if transform is None:
        print("torchvision is not installed: the comparison is with Pillow and NumPy only")
    found: list[CaseResult] = []
    equal: dict[Size, float] = {}
    agreement: dict[Size, Parity] = {}
    pipeline = Pipeline.from_file(PIPELINE)
    try:
        for size in SIZES:
            photos = photo_set(size, folder=CACHE / "photos")
            folder = CACHE / "training" / size
            once = measure.files(folder, photos.contents, repeat=1)
            many = measure.files(folder, photos.contents, repeat=_REPEAT[size])
            agreement[size] = measure.parity(pipeline, NETWORK, once.paths)
            equal[size] = measure.share_equal_to_serving(pipeline, once.paths)
            for case in measure.cases(transform):
                print(f"{size}, {case.name}")
                differences = measure.differences(case, once.paths, workers)
                rates = measure.rounds(case, many.paths, workers, count=options.rounds, progress=print)
                found.append(
                    CaseResult(name=case.name, size=size, images=len(many), images_per_s=rates, differences=differences)
                )
    except (PhotosMissing, ValueError) as error:
        print(f"benchmarks.training: {error}", file=sys.stderr)
        return 1
    print(f"soak: {options.epochs} epochs")
    resident = soak.soak(
        CACHE / "training" / "500x375",
        epochs=options.epochs,
        threads=workers,
        report=lambda epoch, mib: print(f"  epoch {epoch:3}: {mib:8.1f} MiB", flush=True),
    )
    results = TrainingResults(
        started_utc=started.isoformat(timespec="seconds"),
        commit=commit(ROOT),
        machine=this_machine(),
        versions=_versions(),
        workers=workers,
        rounds=options.rounds,
        cases=found,
        equal_to_serving=equal,
        parity=agreement,
        resident_mib=resident,
        growth=soak.growth(resident),
    )
    folder = (options.out or RESULTS) / results.machine.slug
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE_NAME).write_text(results.model_dump_json(indent=1) + "\n")
    print(table(results))
    print(f"written to {folder / FILE_NAME}")
    return 0


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=50, help="of the soak, which prints the memory after each")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write; without it benchmarks/results")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
