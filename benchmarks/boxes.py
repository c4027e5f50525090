"""``python -m benchmarks.boxes``: how many boxes of the reference pipeline every backend and a server give, too.

It is ``onestream parity`` on the 40 photos of ``benchmarks/photos.py``, 20 of each size, for each of our detectors:
built and served as they are, with OpenCV's and Pillow's usual code beside them. Boxes near the score threshold appear
and disappear, and are counted as they do. Nothing is timed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.photos import SIZES, photo_set
from benchmarks.report.others import boxes
from benchmarks.result_files import ROOT, Raw, add_out, begin, path_in, write
from benchmarks.results import BOXES
from onestream.measure.parity.report import Report
from onestream.measure.parity.run import Options, run
from onestream.serving.building.build import build

PIPELINES = ("detect", "nanodet")
AGAINST = ("opencv", "pillow")
_PHOTOS = Path(".cache", "benchmarks", "photos")


def measure(pipelines: Sequence[str], photos: Sequence[str]) -> dict[str, Report]:
    """A parity report of each pipeline, with a server of its own in both forms."""
    reports: dict[str, Report] = {}
    with tempfile.TemporaryDirectory(prefix="onestream-boxes-") as folder:
        for name in pipelines:
            file, repository = ROOT / "pipelines" / f"{name}.yaml", Path(folder, name)
            build(file, folder=repository, progress=print)
            (reports[name],) = run(
                Options(pipeline_file=file, images=photos, repository=repository, serve=True, against=AGAINST)
            ).reports
    return reports


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write boxes.json."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.boxes", description=__doc__)
    parser.add_argument("--pipeline", action="append", choices=PIPELINES, help="only this one; may be repeated")
    add_out(parser)
    options = parser.parse_args(arguments)
    # Reports name photos by their paths, which must not be those of a machine.
    os.chdir(ROOT)
    about = begin(("pycocotools", "opencv-python-headless"))
    photos = [str(_PHOTOS / size / one.name) for size in SIZES for one in photo_set(size, folder=_PHOTOS).photos]
    results: Raw = {
        **about.model_dump(),
        "reports": {
            name: report.model_dump(mode="json")
            for name, report in measure(options.pipeline or PIPELINES, photos).items()
        },
    }
    print(boxes(results))
    path = path_in(options.out, about.machine.slug, BOXES)
    write(path, results)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
