"""The built-in networks, and how their weights become ONNX files. ``network`` in a pipeline file names one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import onnx

Network = Literal[
    "efficientnet-lite0",
    "selfie-segmentation",
    "ssdlite-mobilenet-v2",
    "nanodet-g",
    "ppocr-v6-det",
    "ppocr-cls",
    "ppocr-v6-rec",
]


def load(network: Network, progress: Callable[[str], None]) -> onnx.ModelProto:
    """Return a built-in network; ``progress`` receives a line before each download. Raises ``WeightsError``."""
    if network == "efficientnet-lite0":
        from onestream.pipelines.networks.efficientnet_lite import export_efficientnet_lite0, fetch_weights
        from onestream.pipelines.networks.legacy_pickle import read_legacy_checkpoint

        progress("fetching the weights of EfficientNet-Lite0 (18 MB, once)")
        return export_efficientnet_lite0(read_legacy_checkpoint(fetch_weights()))
    if network == "ssdlite-mobilenet-v2":
        from onestream.pipelines.networks import ssdlite

        progress("fetching SSDLite-MobileNetV2 (17 MB, once)")
        return ssdlite.export_ssdlite(ssdlite.fetch_graph())
    if network == "nanodet-g":
        from onestream.pipelines.networks import nanodet

        progress("fetching NanoDet-g (145 MB, once)")
        return nanodet.export_nanodet_g(nanodet.fetch_graph())
    import onnx

    if network == "selfie-segmentation":
        return onnx.load(Path(__file__).with_name("selfie_segmentation.onnx"))
    from onestream.pipelines.networks.ppocr import fetch_network

    progress("fetching PP-OCR's networks (27 MB, once)")
    return onnx.load(fetch_network(network))
