"""Fine-tune, evaluate, export, build, serve, evaluate again through Triton: one definition all the way.

    python examples/train_classifier/train.py --out runs/digits

The images are scikit-learn's handwritten digits, 1,797 scans of 8x8 pixels (E. Alpaydin and C. Kaynak, CC BY 4.0),
written as JPEG files; a fifth of them is never trained on. Exits with 1 unless the network in the training loop and the
served one predict the same class for every one of those.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import numpy as np
import torch
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits

from onestream.client import Classification, Client
from onestream.pipelines.networks.efficientnet_lite import fetch_weights
from onestream.pipelines.networks.legacy_pickle import read_legacy_checkpoint
from onestream.preprocess.training import Augmentation, Files, ImageLoader
from onestream.serving.building.build import build
from onestream.serving.engine.stamp import stamp_onnx
from onestream.serving.pipeline import Pipeline
from onestream.serving.server.server import Server

HERE = Path(__file__).parent
PIPELINE_FILE = HERE / "digits.yaml"
AUGMENTATION = Augmentation(
    # A digit that is mirrored is none; what comes into sight around the paper is white.
    [{"op": "box", "area": (0.6, 1.0), "ratio": (0.8, 1.25)}, {"op": "rand_augment", "count": 1, "magnitude": 9}],
    fill=255,
)
SEED = 1
CONSOLE = Console()


def main() -> int:
    """Run all of it; returns the exit status."""
    options = _options()
    torch.manual_seed(SEED)
    pipeline = Pipeline.from_file(PIPELINE_FILE)
    write_images(options.out / "images", count=options.images)
    network = train(pipeline, options.out / "images" / "train", epochs=options.epochs)
    tested = Files.from_folder(options.out / "images" / "test")
    by_loader = predict(network, pipeline, tested)
    build(PIPELINE_FILE, folder=options.out / "model_repository", onnx_file=export(network, pipeline, options.out))
    served = predict_served(options.out / "model_repository", tested)
    by_server = [answer.top.class_id for answer in served]

    equal = sum(one == other for one, other in zip(by_loader, by_server, strict=True))
    CONSOLE.print(f"training loop: accuracy {accuracy(by_loader, tested)}")
    CONSOLE.print(f"Triton:        accuracy {accuracy(by_server, tested)}")
    CONSOLE.print(f"the same prediction for {equal} of {len(tested)} images")
    draw(tested, served, options.out / "predictions.png")
    return 0 if equal == len(tested) else 1


def write_images(folder: Path, *, count: int) -> None:
    """Write ``count`` digits as JPEG files into ``train`` and ``test``, a folder for each class."""
    digits = load_digits()
    shuffled = np.random.default_rng(SEED).permutation(len(digits.images))[:count]
    for place, number in enumerate(track(shuffled, "writing the images", console=CONSOLE)):
        part = "test" if place < len(shuffled) // 5 else "train"
        path = folder / part / str(digits.target[number]) / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        # 16 gray levels, ink on paper, as large as a phone would send a cut-out.
        paper = Image.fromarray((255 - digits.images[number] * 15.9375).astype(np.uint8))
        paper.resize((120, 120), Image.Resampling.BICUBIC).convert("RGB").save(path, quality=90)


def train(pipeline: Pipeline, folder: Path, *, epochs: int) -> torch.nn.Module:
    """Fine-tune EfficientNet-Lite0 from its ImageNet weights."""
    network = EfficientNet.from_name("efficientnet-lite0")
    weights = read_legacy_checkpoint(fetch_weights())
    network.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()})
    network._fc = torch.nn.Linear(network._fc.in_features, 10)
    with ImageLoader(
        pipeline.preprocess, folder, batch_size=32, train=True, augmentation=AUGMENTATION, seed=SEED, last_batch="drop"
    ) as loader:
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=epochs * len(loader))
        network.train()
        for epoch in range(epochs):
            losses = []
            for images, labels, _ in track(loader, f"epoch {epoch + 1} of {epochs}", console=CONSOLE):
                loss = torch.nn.functional.cross_entropy(network(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                losses.append(loss.item())
            CONSOLE.print(f"epoch {epoch + 1}: mean loss {np.mean(losses):.3f}")
    return network.eval()


def predict(network: torch.nn.Module, pipeline: Pipeline, files: Files) -> list[int]:
    """The class of each file, by the loader in its evaluation mode and PyTorch."""
    with ImageLoader(pipeline.preprocess, files, batch_size=32) as loader, torch.inference_mode():
        return [int(best) for images, _, _ in loader for best in network(images).argmax(1)]


def export(network: torch.nn.Module, pipeline: Pipeline, folder: Path) -> Path:
    """Write the network as ONNX with the definition stamped inside."""
    path = folder / "digits.onnx"
    example = torch.zeros(2, *(side or 1 for side in pipeline.preprocess.output_spec.shape))
    torch.onnx.export(
        network,
        (example,),
        str(path),
        dynamo=True,
        external_data=False,
        input_names=["input"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        verbose=False,
    )
    stamp_onnx(path, pipeline.preprocess)
    return path


def predict_served(repository: Path, files: Files) -> list[Classification]:
    """Triton's answer for each file."""
    with Server(repository, http_port=0, grpc_port=0, metrics_port=0) as server, Client(server.grpc_url) as client:
        items = client.classify_many(files.paths, pipeline="digits")
        return [item.unwrap() for item in track(items, "asking Triton", total=len(files), console=CONSOLE)]


def accuracy(predicted: list[int], files: Files) -> str:
    """The share of right predictions, as a fraction and a number."""
    right = sum(one == label for one, label in zip(predicted, files.labels, strict=True))
    return f"{right}/{len(files)} = {right / len(files):.6f}"


def draw(files: Files, answers: list[Classification], path: Path) -> None:
    """A figure of 12 test images with the label, the predicted class and its score; wrong ones come first."""
    matplotlib.use("agg")
    from matplotlib import pyplot

    order = sorted(range(len(files)), key=lambda n: (answers[n].top.class_id == files.labels[n], answers[n].top.score))
    figure, axes = pyplot.subplots(2, 6, figsize=(11, 4.4), layout="constrained")
    for axis, index in zip(axes.flat, [*order[:6], *order[-6:]], strict=True):
        top, label = answers[index].top, files.labels[index]
        axis.imshow(Image.open(files.paths[index]))
        axis.set_axis_off()
        color = "tab:green" if top.class_id == label else "tab:red"
        axis.set_title(f"is {label}, seen {top.class_id} ({top.score:.2f})", color=color)
    figure.suptitle("Served predictions: the six least certain or wrong, and the six most certain")
    figure.savefig(path, dpi=120)
    CONSOLE.print(f"figure: {path}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/digits"), help="folder for all that is written")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--images", type=int, default=1797, help="how many of the 1,797 to take")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
