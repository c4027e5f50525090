"""Train the head of a small detector, export, build, serve, and find the same objects again through Triton.

    python examples/train_detector/train.py --out runs/shapes

The pictures are made: circles, squares and triangles on parts of the photos in examples/photos, with a COCO file of
their boxes; those of the test are on photos that are never trained on. Exits with 1 unless the network in the training
loop and the served one find the same objects in every test picture.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import numpy.typing as npt
import torch
from network import Detector, overlaps
from pictures import write_pictures
from PIL import Image
from rich.console import Console
from rich.progress import track

from onestream.client import Client, Detections
from onestream.postprocess.detection import detect
from onestream.postprocess.kinds.detection import Detection
from onestream.preprocess import Definition
from onestream.preprocess.geometry import Mapping
from onestream.preprocess.training import Augmentation, DetectionFiles, DetectionLoader, DetectionSample, read_coco
from onestream.serving.building.build import build
from onestream.serving.engine.stamp import stamp_onnx
from onestream.serving.pipeline import Pipeline
from onestream.serving.server.server import Server

PIPELINE_FILE = Path(__file__).parent / "shapes.yaml"
AUGMENTATION = Augmentation(area=(0.4, 1.0), flip=0.5, brightness=0.2, contrast=0.2)
SAME = 0.99
"""Intersection over union above which two boxes are the same."""
RIGHT = 0.5
"""And above which a box has found an object."""
SEED = 1
CONSOLE = Console()


def main() -> int:
    """Run all of it; returns the exit status."""
    options = _options()
    torch.manual_seed(SEED)
    pipeline = Pipeline.from_file(PIPELINE_FILE)
    definition = pipeline.preprocess
    write_pictures(options.out / "images", count=options.images, seed=SEED, console=CONSOLE)
    trained, tested = (
        read_coco(options.out / "images" / f"{part}.json", images=options.out / "images") for part in ("train", "test")
    )
    network = train(definition, trained, epochs=options.epochs)
    by_loader = predict(network, pipeline, tested)
    build(PIPELINE_FILE, folder=options.out / "model_repository", onnx_file=export(network, definition, options.out))
    by_server = predict_served(options.out / "model_repository", tested)

    same = sum(are_same(one, other) for one, other in zip(by_loader, by_server, strict=True))
    CONSOLE.print(f"training loop: {summary(by_loader, tested)}")
    CONSOLE.print(f"Triton:        {summary(by_server, tested)}")
    CONSOLE.print(f"the same objects in {same} of {len(tested)} pictures")
    draw(tested, by_server, options.out / "predictions.png")
    return 0 if same == len(tested) else 1


def train(definition: Definition, files: DetectionFiles, *, epochs: int) -> Detector:
    """Train the head; the backbone keeps its ImageNet weights."""
    network = Detector(len(files.classes), canvas(definition))
    with DetectionLoader(
        definition, files, batch_size=8, train=True, augmentation=AUGMENTATION, seed=SEED, last_batch="drop"
    ) as loader:
        optimizer = torch.optim.AdamW((one for one in network.parameters() if one.requires_grad), lr=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=epochs * len(loader))
        network.train()
        for epoch in range(epochs):
            losses = []
            for batch in track(loader, f"epoch {epoch + 1} of {epochs}", console=CONSOLE):
                loss = network.loss(batch.images, batch.boxes, batch.class_ids)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                losses.append(loss.item())
            CONSOLE.print(f"epoch {epoch + 1}: mean loss {np.mean(losses):.3f}")
    return network.eval()


class Found(NamedTuple):
    """The objects in a picture: boxes (n, 4) in its pixels, x0 y0 x1 y1; scores and classes (n,)."""

    boxes: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]
    classes: npt.NDArray[np.int32]


def predict(network: Detector, pipeline: Pipeline, files: DetectionFiles) -> list[Found]:
    """The objects in each picture, by the loader in its evaluation mode and PyTorch."""
    assert isinstance(pipeline.postprocess, Detection)
    with DetectionLoader(pipeline.preprocess, files, batch_size=16) as loader, torch.inference_mode():
        return [
            decode(output, mapping, pipeline.postprocess)
            for batch in loader
            for output, mapping in zip(network(batch.images), batch.mappings, strict=True)
        ]


def decode(output: torch.Tensor, mapping: Mapping, options: Detection) -> Found:
    """The objects in a picture from the network's output (4 + classes, cells): suppressed, in the picture's pixels."""
    (centers, sizes), (scores, classes) = output[:4].T.split(2, dim=1), output[4:].max(0)
    boxes = torch.cat([centers - sizes / 2, centers + sizes / 2], 1)
    found = detect(
        boxes.numpy(),
        scores.numpy(),
        classes.to(torch.int32).numpy(),
        mapping,
        score_threshold=options.score_threshold,
        iou_threshold=options.iou_threshold,
        max_detections=options.max_detections,
    )
    return Found(found.boxes, found.scores, found.classes)


def predict_served(repository: Path, files: DetectionFiles) -> list[Found]:
    """Triton's answer for each picture."""
    paths = [sample.path for sample in files.samples]
    with Server(repository, http_port=0, grpc_port=0, metrics_port=0) as server, Client(server.grpc_url) as client:
        items = client.predict_many(paths, pipeline="shapes")
        answers = [item.unwrap() for item in track(items, "asking Triton", total=len(files), console=CONSOLE)]
    return [Found(one.boxes, one.scores, one.class_ids) for one in answers if isinstance(one, Detections)]


def export(network: Detector, definition: Definition, folder: Path) -> Path:
    """Write the network as ONNX with the definition stamped inside."""
    path = folder / "shapes.onnx"
    torch.onnx.export(
        network,
        (torch.zeros(2, 3, *canvas(definition)),),
        str(path),
        dynamo=True,
        external_data=False,
        input_names=["images"],
        output_names=["output0"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        verbose=False,
    )
    stamp_onnx(path, definition)
    return path


def canvas(definition: Definition) -> tuple[int, int]:
    """(height, width) of the network's input."""
    height, width = definition.output_spec.size_hw
    assert height is not None
    assert width is not None
    return height, width


def are_same(one: Found, other: Found) -> bool:
    """Whether the same objects were found: of the same classes, in boxes that cover each other, in any order."""
    covered = overlap(one, other.boxes, other.classes) >= SAME
    return len(one.boxes) == len(other.boxes) and bool(covered.any(0).all() and covered.any(1).all())


def overlap(found: Found, boxes: np.ndarray, class_ids: np.ndarray) -> np.ndarray:
    """Intersection over union of every find with every box; 0 where the classes differ."""
    shares = overlaps(torch.from_numpy(found.boxes)[:, None], torch.from_numpy(boxes))[0].numpy()
    return np.where(found.classes[:, None] == class_ids, shares, 0)


def summary(found: list[Found], files: DetectionFiles) -> str:
    """How many objects were found, and how many finds were none."""
    right = sum(sum(right_finds(one, sample)) for one, sample in zip(found, files.samples, strict=True))
    wanted, seen = sum(len(sample.boxes) for sample in files.samples), sum(len(one.boxes) for one in found)
    return f"{right} of {wanted} objects found, {seen - right} finds are none"


def right_finds(found: Found, sample: DetectionSample) -> Iterator[bool]:
    """Whether each object that was found is there, and is not another find's already."""
    shares = overlap(found, sample.boxes, sample.class_ids)
    for row in shares:
        is_right = bool((row >= RIGHT).any())
        if is_right:
            shares[:, row.argmax()] = 0
        yield is_right


def draw(files: DetectionFiles, found: list[Found], path: Path) -> None:
    """A figure of up to 8 test pictures with what was found: green where it is right, red where it is not."""
    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    figure, axes = pyplot.subplots(2, 4, figsize=(12, 6.4), layout="constrained")
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, one, sample in zip(axes.flat, found, files.samples, strict=False):
        axis.imshow(Image.open(sample.path))
        for is_right, (x0, y0, x1, y1), score, class_id in zip(
            right_finds(one, sample), one.boxes, one.scores, one.classes, strict=True
        ):
            color = "lime" if is_right else "red"
            axis.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=color, linewidth=2))
            axis.text(x0, y0 - 4, f"{files.classes[class_id]} {score:.2f}", color=color, fontsize=8)
    figure.suptitle("What the exported network finds in pictures on photos that it was not trained on")
    figure.savefig(path, dpi=110)
    CONSOLE.print(f"figure: {path}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/shapes"), help="folder for all that is written")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--images", type=int, default=300, help="how many pictures to make, a fifth for the test")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
