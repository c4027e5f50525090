"""``python -m benchmarks.training``: measure the loaders, then write training.json and print its table."""

from __future__ import annotations

import argparse
import sys

from benchmarks.competitors import CLASSIFY
from benchmarks.photos import PHONE, PhotosMissing, Size, photo_set
from benchmarks.report.others import training
from benchmarks.result_files import ROOT, add_out, begin, path_in, write
from benchmarks.results import TRAINING, CaseResult, Parity, TrainingResults
from benchmarks.training import measure
from onestream.serving.pipeline import Pipeline
from onestream.serving.server.fit import usable_cores

CACHE = ROOT / ".cache" / "benchmarks"
NETWORK = ROOT / "model_repository" / "classify_model" / "1" / "model.onnx"
_PACKAGES = ("torch", "torchvision", "nvidia-dali-cuda120", "pillow", "opencv-python-headless", "numpy")
_REPEAT: dict[Size, int] = {"500x375": 80, "1920x1080": 24, PHONE: 4}


def main() -> int:
    """Run; returns the exit status."""
    options = _options()
    workers = usable_cores()
    about, transform = begin(_PACKAGES), measure.torchvision_transform()
    if transform is None:
        print("torchvision is not installed: the comparison is with Pillow and NumPy only")
    found: list[CaseResult] = []
    equal: dict[Size, float] = {}
    agreement: dict[Size, Parity] = {}
    pipeline = Pipeline.from_file(CLASSIFY.pipeline_file)
    try:
        for size, repeat in _REPEAT.items():
            photos = photo_set(size, folder=CACHE / "photos")
            folder = CACHE / "training" / size
            once = measure.files(folder, photos.contents, repeat=1)
            many = measure.files(folder, photos.contents, repeat=repeat)
            agreement[size] = measure.parity(pipeline, NETWORK, once.paths)
            equal[size] = measure.share_equal_to_serving(pipeline, once.paths)
            for case in (one for one in measure.cases(transform) if size in one.sizes):
                print(f"{size}, {case.name}")
                differences = measure.differences(case, once.paths, workers)
                rates = measure.rounds(case, many.paths, workers, count=options.rounds, progress=print)
                found.append(
                    CaseResult(name=case.name, size=size, images=len(many), images_per_s=rates, differences=differences)
                )
    except (PhotosMissing, ValueError) as error:
        print(f"benchmarks.training: {error}", file=sys.stderr)
        return 1
    results = TrainingResults(
        **about.model_dump(),
        workers=workers,
        rounds=options.rounds,
        cases=found,
        equal_to_serving=equal,
        parity=agreement,
    )
    path = path_in(options.out, results.machine.slug, TRAINING)
    write(path, results)
    print(training(results))
    print(f"written to {path}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    add_out(parser)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
