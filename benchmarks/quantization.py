"""``python -m benchmarks.quantization``: what int8 costs and gains, network by network, by the certificates of builds.

Every pipeline file in pipelines/ is built in int8, in float32's place, into a folder that is thrown away. The pictures
are 64 random parts of the photos in examples/photos (500×375), for *read* its contest's 20 with ten lines each. Where a
build refuses, it is repeated without a bound, for the figures of all of a cascade's stages.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from benchmarks.photos import make_photos
from benchmarks.reading.pictures import ten_lines
from benchmarks.report.others import quantization
from benchmarks.result_files import ROOT, Raw, add_out, begin, path_in, write
from benchmarks.results import QUANTIZATION
from onestream.serving.building.build import Built, build
from onestream.serving.building.quantization.calibration import MIN_AGREEMENT, Calibration
from onestream.serving.errors import BadNetwork

_PHOTOS = Path(".cache", "benchmarks", "photos")
_PARTS, _SEED = 64, 7


def pictures(pipeline: str, folder: Path) -> list[Path]:
    """The files that a pipeline is calibrated with, written below ``folder``."""
    if pipeline == "read":
        contents = list(ten_lines("640x480", _PHOTOS).contents)
    else:
        sources = sorted((ROOT / "examples" / "photos").glob("*.jpg"))
        threads = len(os.sched_getaffinity(0))
        contents = make_photos("500x375", _PARTS, sources=sources, seed=_SEED, threads=threads)
    folder.mkdir()
    files = [folder / f"{number:03}.jpg" for number in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    return files


def networks(file: Path, folder: Path) -> list[Raw]:
    """A row for each network of a pipeline file: its name, its ``Quantization``, and whether a build refuses int8.

    ``build_s`` is how long the whole pipeline's calibration and search took, in seconds.
    """
    shown = pictures(file.stem, folder / file.stem)
    fields = yaml.safe_load(file.read_text(encoding="utf-8"))
    # Also of a stage that the file leaves in float32.
    for stage in fields.get("stages", {}).values():
        stage.pop("precision", None)
    own = folder / file.name
    own.write_text(yaml.safe_dump(fields, sort_keys=False), encoding="utf-8")

    def built(name: str, calibration: Calibration) -> Built:
        to = folder / name / file.stem
        return build(own, folder=to, precision="int8", calibration=calibration, beside=file.parent)

    refused, began = False, time.monotonic()
    try:
        found = built("models", Calibration(pictures=shown))
    except BadNetwork as error:
        print(f"refused: {error}")
        refused = True
    seconds = time.monotonic() - began
    if refused:
        found = built("unbounded", Calibration(pictures=shown, min_agreement=0))
    return [
        {
            "network": name if name == file.stem else f"{file.stem}: {name}",
            "quantization": price.model_dump(mode="json"),
            "build_s": round(seconds, 1),
            "refused": price.agreement.share < MIN_AGREEMENT,
        }
        for name, price in found.quantizations.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantization", description=__doc__)
    add_out(parser)
    options = parser.parse_args(arguments)
    about, rows = begin(("onnxruntime", "onnx", "numpy", "pillow")), []
    with tempfile.TemporaryDirectory(prefix="onestream-int8-") as folder:
        for file in sorted((ROOT / "pipelines").glob("*.yaml")):
            print(file.stem, flush=True)
            rows += networks(file, Path(folder))
    results: Raw = {**about.model_dump(), "networks": rows}
    path = path_in(options.out, about.machine.slug, QUANTIZATION)
    write(path, results)
    print(quantization(results))
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
