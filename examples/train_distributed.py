"""Data-parallel training with shards of one dataset, ready for torchrun on CPUs or GPUs.

    torchrun --nproc-per-node 2 examples/train_distributed.py FOLDER

FOLDER holds one folder of images for each class. Every process loads its own part of each epoch: the loader reads rank
and world size from ``torch.distributed``. Prints one line per epoch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from onestream.preprocess import CenterCrop, Decode, Definition, Normalize, Resize
from onestream.preprocess.training import ImageLoader

DEFINITION = Definition(
    operations=(
        Decode(),
        Resize(mode="shorter", size=72),
        CenterCrop(size=(64, 64)),
        Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    )
)


def main() -> None:
    """Train a small network; run by torchrun in every process."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8, help="images per process and step")
    options = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    torch.manual_seed(0)
    with ImageLoader(
        DEFINITION, options.folder, batch_size=options.batch_size, train=True, to=device, threads=1
    ) as loader:
        network = DistributedDataParallel(small_network(len(loader.classes)).to(device))
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
        for epoch in range(options.epochs):
            seen = torch.zeros(2, device=device)
            for images, labels, _ in loader:
                loss = torch.nn.functional.cross_entropy(network(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen += torch.stack([loss.detach() * len(labels), torch.tensor(float(len(labels)), device=device)])
            dist.all_reduce(seen)
            if dist.get_rank() == 0:
                total, count = seen.tolist()
                print(f"epoch {epoch + 1}: {count:.0f} images, {len(loader)} steps, mean loss {total / count:.4f}")
    dist.destroy_process_group()


def small_network(classes: int) -> torch.nn.Module:
    """Two convolutions and a linear layer."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, classes),
    )


if __name__ == "__main__":
    main()
