"""CPU time of what comes after a detector's network: decoding of outputs, suppression, boxes in pixels of the picture.

Measured as ``cpu_time`` is, one picture at a time and in turns:

*network*             the network with the definition's last steps at its door, and its own outputs
*network with tail*   the same, which ends in the nodes that make candidates of them
*boxes*               postprocessing in Python, from candidates to the answer, at a score threshold of 0.05
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import yaml

from onestream.postprocess import read_labels
from onestream.postprocess.options import Detection
from onestream.postprocess.postprocessing import open_postprocess
from onestream.preprocess import compile
from onestream.preprocess.headers.reader import read_header
from onestream.serving.building.build import build
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.pipeline import Pipeline

Timed = Literal["network", "network with tail", "boxes"]
TIMED: tuple[Timed, ...] = get_args(Timed)
SCORE_THRESHOLD = 0.05
"""Low, as for measuring average precision: most pictures have tens of boxes above it."""

_TIMEOUT_S = 300.0
_WARMUP = 10


def build_without_tail(pipeline_file: Path, folder: Path) -> Path:
    """The ONNX file of a detector that is built without its tail, in ``folder``."""
    fields = yaml.safe_load(pipeline_file.read_text(encoding="utf-8")) | {"postprocess": {"kind": "raw"}}
    fields.pop("video", None)
    with tempfile.TemporaryDirectory(prefix="onestream-bench-") as name:
        bare = Path(name) / pipeline_file.name
        bare.write_text(yaml.safe_dump(fields), encoding="utf-8")
        build(bare, folder=folder)
    return folder / f"{pipeline_file.stem}_fused" / "1" / "model.onnx"


def measure(
    pipeline_file: Path, fused: Path, bare_network: Path, photos: Sequence[bytes], *, passes: int
) -> list[dict[str, float]]:
    """Milliseconds of CPU time per image, one entry for every pass over the photos.

    ``fused`` is the folder of the fused model, ``bare_network`` what ``build_without_tail`` gives. Raises
    ``multiprocessing.TimeoutError`` after five minutes.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        arguments = (pipeline_file, fused, bare_network, tuple(photos), passes)
        return pool.apply_async(_measure, arguments).get(_TIMEOUT_S)


def _measure(
    pipeline_file: Path, fused: Path, bare_network: Path, photos: tuple[bytes, ...], passes: int
) -> list[dict[str, float]]:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    pipeline = Pipeline.from_file(pipeline_file)
    assert isinstance(pipeline.postprocess, Detection)
    postprocess = open_postprocess(
        pipeline.postprocess.model_copy(update={"score_threshold": SCORE_THRESHOLD}),
        pipeline.preprocess,
        labels=read_labels(fused / "labels.txt"),
    )
    compiled = compile(pipeline.preprocess.pixels(), backend="dali", limits=pipeline.limits, threads=1)
    batches = [np.stack([np.asarray(sample)]) for photo in photos for sample in compiled.run([photo])]
    sizes = [read_header(photo).oriented_hw for photo in photos]
    bare, whole = (OnnxRuntimeEngine(file, threads=1) for file in (bare_network, fused / "1" / "model.onnx"))
    for batch in batches[:_WARMUP]:
        bare.run(batch)
        whole.run(batch)
    measured = []
    for number in range(passes):
        used: dict[str, float] = dict.fromkeys(TIMED, 0.0)
        for index, (batch, size) in enumerate(zip(batches, sizes, strict=True)):
            # Each goes first every other time, since the second finds the caches as the first left them.
            turns: list[tuple[Timed, OnnxRuntimeEngine]] = [("network", bare), ("network with tail", whole)]
            for name, engine in turns if (number + index) % 2 else turns[::-1]:
                began = time.process_time()
                outputs = engine.run(batch)
                used[name] += time.process_time() - began
                if engine is whole:
                    candidates = outputs
            began = time.process_time()
            postprocess(candidates, [size])
            used["boxes"] += time.process_time() - began
        measured.append({name: seconds * 1000 / len(photos) for name, seconds in used.items()})
    return measured
