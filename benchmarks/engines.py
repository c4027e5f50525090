"""``python -m benchmarks.engines``: milliseconds of each network by each engine of a CPU, in each precision.

Every pipeline file in pipelines/ is built in int8 without a bound, with the pictures of ``benchmarks.quantization``. Of
each network the files in float32 and in int8 are run by ONNX Runtime and by OpenVINO, and the one in float32 by
OpenVINO in bfloat16, too: one picture, one thread, all by turns in one process.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import yaml
from onnx import helper

from benchmarks.quantization import pictures
from benchmarks.report.others import engines as table
from benchmarks.result_files import ROOT, Raw, add_out, begin, path_in, write
from benchmarks.results import ENGINES
from onestream.serving.building.build import build
from onestream.serving.building.quantization.calibration import Calibration
from onestream.serving.built.here import medians_ms
from onestream.serving.engine.cpu import CpuEngine, OnnxRuntimeEngine
from onestream.serving.engine.network_files import NETWORK_FILE, float_beside
from onestream.serving.engine.openvino_cpu import OpenVinoEngine
from onestream.serving.engine.quantization import COMPUTED_IN
from onestream.serving.errors import BadNetwork

_BUDGET_S = 20.0


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


def networks(file: Path, folder: Path) -> list[Raw]:
    """A row for each network of a pipeline file: its name, its pixels and its times."""
    fields = yaml.safe_load(file.read_text(encoding="utf-8"))
    # Also of a stage that the file leaves in float32.
    for stage in fields.get("stages", {}).values():
        stage.pop("precision", None)
    own = folder / file.name
    own.write_text(yaml.safe_dump(fields, sort_keys=False), encoding="utf-8")
    calibration = Calibration(pictures=pictures(file.stem, folder / file.stem), min_agreement=0)
    to = folder / "models" / file.stem
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__)
    add_out(parser)
    options = parser.parse_args(arguments)
    about, rows = begin(("onnxruntime", "openvino")), []
    with tempfile.TemporaryDirectory(prefix="onestream-engines-") as folder:
        for file in sorted((ROOT / "pipelines").glob("*.yaml")):
            print(file.stem, flush=True)
            rows += networks(file, Path(folder))
    results: Raw = {**about.model_dump(), "networks": rows}
    path = path_in(options.out, about.machine.slug, ENGINES)
    write(path, results)
    print(table(results))
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
