"""PP-OCR's networks as ONNX models: where lines of text are, which way up they are, and what they say.

PP-OCRv6 small for detection and recognition, PP-OCR mobile v2.0 for the orientation of a line, all of
github.com/PaddlePaddle/PaddleOCR (Apache-2.0), converted to ONNX by the PyPI package `rapidocr` 3.10.0 (Apache-2.0).

Each takes ``x``: float32 [batch, 3, height, width], BGR, (0 to 255 / 255 - 0.5) / 0.5; batch, height and width are
dynamic, but for the recognizer's height.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from onestream.pipelines.networks.package_files import Package, PackageFile, fetch

Network = Literal["ppocr-v6-det", "ppocr-cls", "ppocr-v6-rec"]

_PACKAGE = Package(registry="pypi", name="rapidocr", version="3.10.0", download_mb=27)
_FILES: dict[Network, PackageFile] = {
    "ppocr-v6-det": PackageFile(
        "rapidocr/models/PP-OCRv6_det_small.onnx",
        "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
        kept_as="ppocr/v6-det-small.onnx",
    ),
    "ppocr-cls": PackageFile(
        "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        kept_as="ppocr/mobile-v2.0-cls.onnx",
    ),
    "ppocr-v6-rec": PackageFile(
        "rapidocr/models/PP-OCRv6_rec_small.onnx",
        "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
        kept_as="ppocr/v6-rec-small.onnx",
    ),
}


def fetch_network(network: Network, *, cache_dir: Path | None = None) -> Path:
    """Return the checked ONNX file of a network, downloading all three (27 MB) with pip the first time.

    ``ppocr-v6-det`` takes sides of multiples of 32 and gives the probability of the core of a line of text, 0 to 1:
    float32 [batch, 1, height, width]. ``ppocr-cls`` takes 48x192, a line in its upper left, and gives the probabilities
    of a line that is upright and of one that is upside down: float32 [batch, 2]. ``ppocr-v6-rec`` takes a height of 48
    and gives a step for every 8 columns: float32 [batch, steps, 18710], the probabilities of the blank of CTC, of the
    18708 characters that its metadata hold as ``character``, one a line, and of a space.

    See `package_files.fetch`. Raises `WeightsError`.
    """
    paths = fetch(_PACKAGE, list(_FILES.values()), cache_dir=cache_dir)
    return dict(zip(_FILES, paths, strict=True))[network]
