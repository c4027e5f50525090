"""A server that exists only as an object, and the command run on it."""

from __future__ import annotations

import csv
import io
import json
import tarfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

import onestream.cli.bulk.command as command
import onestream.cli.bulk.run as run_module
from onestream.client import BadImage, Client
from onestream.client._transports.base import InferRequest, SharedMemoryRegion, Tensors

Answer = Callable[[bytes], Tensors]

LIMIT = 1000

app = typer.Typer()
app.command()(command.bulk)


def labels(data: bytes) -> Tensors:
    """Two labels: the bytes as text with their number, and one that is only in a longer row. *bad* is refused."""
    if data.startswith(b"bad"):
        raise BadImage("corrupt", "the file ends, early")
    names = np.empty((1, 2), dtype=object)
    names[0] = [data[:40], "café, au lait\n".encode()]
    return {
        "scores": np.array([[0.75, 0.25]], np.float32),
        "class_ids": np.array([[len(data), 7]], np.int32),
        "labels": names,
    }


def objects(data: bytes) -> Tensors:
    """As many objects as the bytes have letters *o*, best first, each labelled with the bytes. *bad* is refused."""
    if data.startswith(b"bad"):
        raise BadImage("corrupt", "the file ends, early")
    count = data.count(b"o")
    names = np.empty((1, count), dtype=object)
    names[:] = data[:40]
    return {
        "boxes": np.array([[n, 0.25, n + 10.1, 20] for n in range(count)], np.float32).reshape(1, count, 4),
        "scores": np.linspace(0.9, 0.3, count, dtype=np.float32)[None],
        "class_ids": np.arange(1, count + 1, dtype=np.int32)[None],
        "labels": names,
        "image_size": np.array([[48, 64]], np.int32),
    }


def text(data: bytes) -> Tensors:
    """As many lines of text as the bytes have letters *o*, each saying the bytes. *bad* is refused."""
    if data.startswith(b"bad"):
        raise BadImage("corrupt", "the file ends, early")
    count = data.count(b"o")
    texts = np.empty((1, count), dtype=object)
    texts[:] = data[:40]
    corners = [((n, 0.25), (n + 10.1, 1), (n + 10, 20), (n, 19.5)) for n in range(count)]
    return {
        "quads": np.array(corners, np.float32).reshape(1, count, 4, 2),
        "texts": texts,
        "scores": np.linspace(0.9, 0.3, count, dtype=np.float32)[None],
        "turn_degrees": np.full((1, count), 180, np.int32),
        "find_scores": np.full((1, count), 0.7, np.float32),
        "image_size": np.array([[48, 64]], np.int32),
        "left_out": np.array([[count // 3]], np.int32),
    }


def sorted_objects(data: bytes) -> Tensors:
    """The ``objects``, each of which a later stage gave two classes and a vector."""
    found = objects(data)
    count = found["boxes"].shape[1]
    labels = np.empty((1, count, 2), dtype=object)
    labels[:] = b"espresso", b"other"
    return {
        **{f"detect_{name}": found[name] for name in ("scores", "class_ids", "labels")},
        **{name: found[name] for name in ("boxes", "image_size")},
        "labels": labels,
        "class_ids": np.tile(np.array([5, 7], np.int32), (1, count, 1)),
        "scores": np.tile(np.array([0.75, 0.125], np.float32), (1, count, 1)),
        "vectors": np.ones((1, count, 3), np.float32),
        "left_out": np.zeros((1, 1), np.int32),
    }


def vector(data: bytes) -> Tensors:
    """An embedding of three values. *bad* is refused."""
    if data.startswith(b"bad"):
        raise BadImage("corrupt", "the file ends, early")
    return {"embedding": np.array([[len(data), 0.1, -1]], np.float32)}


def outputs(data: bytes) -> Tensors:
    """Outputs that no kind of pipeline has. *bad* is refused."""
    if data.startswith(b"bad"):
        raise BadImage("corrupt", "the file ends, early")
    return {
        "heat": np.array([[[len(data), np.nan], [0.1, 2]]], np.float32),
        "path": np.array([len(data)], np.int64),
        "seen": np.array([[True, False]]),
    }


class FakeTransport:
    """Answers with ``answer(data)``, which may raise, and remembers what it was sent."""

    url = "fake://server:1"

    def __init__(self, answer: Answer = labels) -> None:
        self.answer = answer
        self.sent: list[bytes] = []
        self._lock = threading.Lock()

    def infer(self, request: InferRequest, *, timeout_s: float) -> Tensors:
        assert isinstance(request.image, bytes)
        assert timeout_s > 0
        with self._lock:
            self.sent.append(request.image)
        return self.answer(request.image)

    def model_config(self, model: str, *, timeout_s: float) -> Mapping[str, Any]:
        assert timeout_s > 0
        return {"name": model, "parameters": {"max_body_bytes": {"string_value": str(LIMIT)}}}

    def is_ready(self, model: str | None, *, timeout_s: float) -> bool:
        raise NotImplementedError

    def server_metadata(self, *, timeout_s: float) -> Mapping[str, Any]:
        raise NotImplementedError

    def model_statistics(self, model: str, *, timeout_s: float) -> Sequence[Mapping[str, Any]]:
        raise NotImplementedError

    def register_region(self, region: SharedMemoryRegion, *, timeout_s: float) -> None:
        raise NotImplementedError

    def unregister_region(self, region_name: str, *, timeout_s: float) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


def failing_after(count: int, error: Exception, answer: Answer = labels) -> Answer:
    """Answers so many images, and then raises the error."""
    left = [count]

    def answer_or_fail(data: bytes) -> Tensors:
        left[0] -= 1
        if left[0] < 0:
            raise error
        return answer(data)

    return answer_or_fail


class Bulk:
    """Runs the command on a fake server."""

    def __init__(self) -> None:
        self.transport = FakeTransport()

    def connect(self, *arguments: Any, **options: Any) -> Client:
        return Client(*arguments, transport=self.transport, **{**options, "retries": 0})

    def run(self, *arguments: object, stdin: str | bytes | None = None) -> Result:
        self.transport.sent.clear()
        return CliRunner().invoke(
            app, [str(argument) for argument in arguments], input=stdin, catch_exceptions=False, env={"COLUMNS": "200"}
        )


def photos(folder: Path, files: Mapping[str, bytes]) -> Path:
    """A folder with these files."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def shard(files: Mapping[str, bytes]) -> bytes:
    """A tar file with these files."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


def table(images: Sequence[bytes]) -> bytes:
    """A Parquet file with these images."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    file = io.BytesIO()
    parquet.write_table(pa.table({"image": pa.array(images, pa.binary())}), file)
    return file.getvalue()


@pytest.fixture
def bulk(monkeypatch: pytest.MonkeyPatch) -> Bulk:
    fake = Bulk()
    monkeypatch.setattr(run_module, "Client", fake.connect)
    return fake


def json_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def beside(path: Path) -> list[str]:
    return sorted(other.name for other in path.parent.glob(f"{path.name}*"))


NAMES = [f"{number:02}.jpg" for number in range(30)]
BAD = {"07.jpg": b"bad", "11.jpg": bytes(LIMIT + 1), "20.jpg": b""}
"""Thirty photos for the fixture ``folder``, of which three cannot be used."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {name: BAD.get(name, f"image {name}".encode()) for name in NAMES}
    return photos(tmp_path / "photos", files)
