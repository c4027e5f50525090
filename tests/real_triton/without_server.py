"""What an environment without the server can do, as a program of its own: it writes what it saw to a folder.

    python without_server.py client FOLDER PHOTOS GRPC_URL HTTP_URL
    python without_server.py train FOLDER PHOTOS VIDEO

It needs nothing of the tests, so that it runs in environments that have no test tools.
"""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from onestream.client import AsyncClient, Client


def client(folder: Path, photos: Path, *urls: str) -> None:
    """The labels of every photo by each client over each protocol, in answers.json, and by ``onestream bulk``."""
    files = sorted(photos.glob("*.jpg"))

    async def concurrently(url: str) -> list[Any]:
        async with AsyncClient(url, timeout_s=60.0) as asked:
            return await asyncio.gather(*(asked.classify(file) for file in files))

    answers: dict[str, list[list[Any]]] = {}
    for url in urls:
        with Client(url, timeout_s=60.0) as asked:
            one_by_one = [asked.classify(file) for file in files]
            # Not a file but pixels: encoded here.
            answers[f"{url} pixels"] = _plain([asked.classify(np.asarray(Image.open(file))) for file in files])
        answers[f"{url} sync"] = _plain(one_by_one)
        answers[f"{url} async"] = _plain(asyncio.run(concurrently(url)))
    (folder / "answers.json").write_text(json.dumps(answers), encoding="utf-8")
    bulk = [sys.executable, "-m", "onestream", "bulk", str(photos), "--to", str(folder / "bulk.parquet")]
    subprocess.run([*bulk, "--url", urls[0], "--timeout-s", "60"], check=True)


def _plain(results: list[Any]) -> list[list[Any]]:
    return [[[label.class_id, label.label, label.score] for label in result.labels] for result in results]


def train(folder: Path, photos: Path, video: str) -> None:
    """Batches of the image loader, and a clip, in batches.npz; the reference must equal torchvision's transform."""
    from onestream.preprocess import CenterCrop, Decode, Definition, Normalize, Resize, compile
    from onestream.preprocess.interop import to_torchvision
    from onestream.preprocess.interop.libraries import load
    from onestream.preprocess.training import Augmentation, ImageLoader
    from onestream.preprocess.video import Clip, ClipMaker

    normalize = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    operations = (Decode(), Resize(mode="shorter", size=256), CenterCrop(size=(224, 224)), normalize)
    definition = Definition(operations=operations)
    seen: dict[str, Any] = {}
    for backend in ("dali", "reference"):
        for name, options in (
            ("evaluation", {}),
            ("training", {"train": True, "seed": 7, "augmentation": Augmentation(brightness=0.2)}),
        ):
            with ImageLoader(definition, photos, batch_size=4, backend=backend, threads=1, **options) as loader:
                batches = list(loader)
            seen[f"{backend} {name}"] = np.concatenate([batch.images.numpy() for batch in batches])
            seen[f"{backend} {name} order"] = np.concatenate([batch.indices.numpy() for batch in batches])
    for backend in ("reference", "pyav"):
        seen[f"{backend} clip"] = ClipMaker(definition, Clip(num_frames=5), backend=backend).make(video)
    np.savez(folder / "batches.npz", **seen)

    encoded = [file.read_bytes() for file in sorted(photos.glob("*.jpg"))]
    load("torchvision.transforms.v2")
    transform = to_torchvision(definition)
    for data, expected in zip(encoded, compile(definition).run(encoded), strict=True):
        assert np.array_equal(transform(Image.open(io.BytesIO(data))).numpy(), expected)


def main() -> None:
    """Run one part, and say what of NumPy and Triton is here."""
    part, folder, photos, *more = sys.argv[1:]
    {"client": client, "train": train}[part](Path(folder), Path(photos), *more)
    print(json.dumps({"numpy": np.__version__, "triton": "pytriton" in sys.modules}))


if __name__ == "__main__":
    main()
