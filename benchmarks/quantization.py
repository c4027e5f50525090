"""``python -m benchmarks.quantization``: what int8 costs and gains, network by network, by the certificates of builds.

With ``--engines``: milliseconds of each network by each engine of a CPU, in each precision, one picture in one thread.

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
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import yaml
from onnx import helper

from benchmarks.photos import make_photos
from benchmarks.reading.pictures import ten_lines
from benchmarks.report.others import engines, quantization
from benchmarks.result_files import ROOT, Raw, add_out, begin, path_in, write
from benchmarks.results import ENGINES, QUANTIZATION
from onestream.serving.building.build import Built, build
from onestream.serving.building.quantization.calibration import MIN_AGREEMENT, Calibration
from onestream.serving.built.here import medians_ms
from onestream.serving.engine.cpu import CpuEngine, OnnxRuntimeEngine
from onestream.serving.engine.network_files import NETWORK_FILE, float_beside
from onestream.serving.engine.openvino_cpu import OpenVinoEngine
from onestream.serving.engine.quantization import COMPUTED_IN
from onestream.serving.errors import BadNetwork

_BUDGET_S = 20.0
"""For which the engines of a network are timed."""
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


def with_every_stage(file: Path, folder: Path) -> Path:
    """A copy of a pipeline file in ``folder``, which leaves no stage in float32."""
    fields = yaml.safe_load(file.read_text(encoding="utf-8"))
    for stage in fields.get("stages", {}).values():
        stage.pop("precision", None)
    own = folder / file.name
    own.write_text(yaml.safe_dump(fields, sort_keys=False), encoding="utf-8")
    return own


def networks(file: Path, folder: Path) -> list[Raw]:
    """A row for each network of a pipeline file: its name, its ``Quantization``, and whether a build refuses int8.

    ``build_s`` is how long the whole pipeline's calibration and search took, in seconds.
    """
    shown = pictures(file.stem, folder / file.stem)
    own = with_every_stage(file, folder)

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


def times(network: Path, pixels: tuple[int, int, int]) -> Raw:
    """Milliseconds of a run with noise of this (height, width, channels), by engine and precision."""
    in_float32, in_int8 = float_beside(network).read_bytes(), network.read_bytes()
    rounded = onnx.load_model_from_string(in_float32)
    metadata = {entry.key: entry.value for entry in rounded.metadata_props}
    helper.set_model_props(rounded, metadata | {COMPUTED_IN: "bf16"})
    engines: dict[str, CpuEngine] = {
        "onnxruntime float32": OnnxRuntimeEngine(in_float32, threads=1),
        "onnxruntime int8": OnnxRuntimeEngine(in_int8, threads=1),
    }
    files = {"float32": in_float32, "bf16": rounded.SerializeToString(), "int8": in_int8}
    for precision, file in files.items():
        with suppress(BadNetwork):  # what OpenVINO does not take has no time
            opened = OpenVinoEngine(file, threads=1)
            if precision != "bf16" or opened.computes_in == "bf16":
                engines[f"openvino {precision}"] = opened
    noise = np.random.default_rng(0).integers(0, 256, (1, *pixels), dtype=np.uint8)
    found = medians_ms(list(engines.values()), noise, budget_s=_BUDGET_S)
    return {name: round(ms, 3) for name, ms in zip(engines, found, strict=True)}


def engines_of(file: Path, folder: Path) -> list[Raw]:
    """A row for each network of a pipeline file: its name, its pixels and its times."""
    calibration = Calibration(pictures=pictures(file.stem, folder / file.stem), min_agreement=0)
    to = folder / "models" / file.stem
    own = with_every_stage(file, folder)
    built = build(own, folder=to, precision="int8", calibration=calibration, beside=file.parent)
    rows = []
    for name, price in built.quantizations.items():
        stage = "" if name == file.stem else f"_{name}"
        network = to / f"{file.stem}{stage}_model" / "1" / NETWORK_FILE
        pixels = price.speed.pixels
        rows.append({"network": f"{file.stem}{stage}", "pixels": pixels, "ms": times(network, pixels)})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantization", description=__doc__)
    parser.add_argument("--engines", action="store_true", help="measure the engines of a CPU instead")
    add_out(parser)
    options = parser.parse_args(arguments)
    made, table, name = (engines_of, engines, ENGINES) if options.engines else (networks, quantization, QUANTIZATION)
    more = ("openvino",) if options.engines else ()
    about, rows = begin(("onnxruntime", "onnx", "numpy", "pillow", *more)), []
    with tempfile.TemporaryDirectory(prefix="onestream-int8-") as folder:
        for file in sorted((ROOT / "pipelines").glob("*.yaml")):
            print(file.stem, flush=True)
            rows += made(file, Path(folder))
    results: Raw = {**about.model_dump(), "networks": rows}
    path = path_in(options.out, about.machine.slug, name)
    write(path, results)
    print(table(results))
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
