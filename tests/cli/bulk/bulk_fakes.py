"""A server that exists only as an object, and the command run on it."""

from __future__ import annotations

import csv
import inspect
import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import client_fakes
import numpy as np
import pytest
import typer
from client_fakes import classification, detections, reading
from typer.testing import CliRunner, Result

import onestream.cli.bulk.command as command
import onestream.cli.bulk.run as run_module
from onestream.cli.bulk.sources import Sample, samples
from onestream.client import BadImage, Client, InferRequest, OnestreamError, Tensors

Answer = Callable[[bytes], Tensors]

LIMIT = 1000
SIZE_HW = (48, 64)

app = typer.Typer()
app.command()(command.bulk)


def labels(data: bytes) -> Tensors:
    """Two labels: the bytes as text with their number, and one that is only in a longer row."""
    return classification((data[:40].decode(), len(data), 0.75), ("café, au lait\n", 7, 0.25))


def objects(data: bytes) -> Tensors:
    """As many objects as the bytes have letters *o*, best first, each labelled with the bytes."""
    count = data.count(b"o")
    scores = np.linspace(0.9, 0.3, count)
    found = [(data[:40].decode(), n + 1, scores[n], (n, 0.25, n + 10.1, 20)) for n in range(count)]
    return detections(*found, size_hw=SIZE_HW)


def text(data: bytes) -> Tensors:
    """As many lines of text as the bytes have letters *o*, each saying the bytes."""
    count = data.count(b"o")
    scores = np.linspace(0.9, 0.3, count)
    corners = [((n, 0.25), (n + 10.1, 1), (n + 10, 20), (n, 19.5)) for n in range(count)]
    lines = [(data[:40].decode(), scores[n], corners[n]) for n in range(count)]
    found = reading(*lines, size_hw=SIZE_HW, left_out=count // 3)
    del found["turn_scores"]
    return found


def sorted_objects(data: bytes) -> Tensors:
    """The ``objects``, each of which a later stage gave two classes and a vector."""
    found = objects(data)
    boxes = found["boxes"][0].tolist()
    later = client_fakes.sorted_objects(*(("", "espresso", box) for box in boxes), size_hw=SIZE_HW)
    earlier = {f"detect_{name}": found[name] for name in ("scores", "class_ids", "labels")}
    return {**later, **earlier, "vectors": np.ones((1, len(boxes), 3), np.float32)}


def vector(data: bytes) -> Tensors:
    """An embedding of three values."""
    return {"embedding": np.array([[len(data), 0.1, -1]], np.float32)}


def outputs(data: bytes) -> Tensors:
    """Outputs that no kind of pipeline has."""
    return {
        "heat": np.array([[[len(data), np.nan], [0.1, 2]]], np.float32),
        "path": np.array([len(data)], np.int64),
        "seen": np.array([[True, False]]),
    }


_KINDS = {objects: "detection", text: "reading", sorted_objects: "regions", vector: "embedding", outputs: "raw"}


class FakeTransport(client_fakes.FakeTransport):
    """Answers with ``answer(data)``, which may raise, refuses *bad* and remembers what it was sent."""

    def __init__(self) -> None:
        super().__init__(parameters={"max_body_bytes": str(LIMIT)})
        self.answer: Any = labels
        self.kind: str | None = None
        """What the pipeline says that it answers; by default what ``answer`` does."""
        self.sent: list[bytes] = []

    def model_config(self, model: str, *, timeout_s: float) -> Mapping[str, Any]:
        self.kinds = {model: self.kind or _KINDS.get(inspect.unwrap(self.answer), "classification")}
        return super().model_config(model, timeout_s=timeout_s)

    def infer(self, request: InferRequest, *, timeout_s: float) -> Tensors:
        assert isinstance(request.image, bytes)
        assert timeout_s > 0
        with self._lock:
            self.sent.append(request.image)
            self.inferences.append((request, timeout_s))
        found: Tensors = self.answer(request.image)
        if request.image.startswith(b"bad"):
            raise BadImage("corrupt", "the file ends, early")
        return found


def failing_after(count: int, error: Exception, answer: Answer = labels) -> Answer:
    """Answers so many images, and then raises the error."""
    left = [count]

    def answer_or_fail(data: bytes) -> Tensors:
        left[0] -= 1
        if left[0] < 0:
            raise error
        return answer(data)

    answer_or_fail.__wrapped__ = answer  # type: ignore[attr-defined]
    return answer_or_fail


class Bulk:
    """Runs the command on a fake server."""

    def __init__(self) -> None:
        self.transport = FakeTransport()

    def connect(self, *arguments: Any, **options: Any) -> Client:
        self.transport.is_closed = False
        return Client(*arguments, transport=self.transport, **{**options, "retries": 0})

    def run(self, *arguments: object, stdin: str | bytes | None = None) -> Result:
        self.transport.sent.clear()
        return CliRunner().invoke(
            app, [str(argument) for argument in arguments], input=stdin, catch_exceptions=False, env={"COLUMNS": "200"}
        )

    def refused(self, *arguments: object) -> str:
        """What the command says where it cannot start."""
        result = self.run(*arguments)
        assert result.exit_code == 2, result.output
        return result.stderr


def kind(error: OnestreamError) -> str:
    return type(error).__name__


def photos(folder: Path, files: Mapping[str, bytes]) -> Path:
    """A folder with these files."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def shard(files: Mapping[str, bytes], mode: Any = "w") -> bytes:
    """A tar file with these files."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


def loaded(sample: Sample, most: int = 10_000, told: Callable[[OnestreamError], str] = kind) -> bytes | str:
    """The bytes of a sample, or what is told of its error."""
    try:
        image = sample.load(most)
    except OnestreamError as error:
        return told(error)
    return Path(image).read_bytes() if isinstance(image, str) else image


def read(
    *sources: object, listed: Sequence[str] = (), column: str | None = None, **options: Any
) -> list[tuple[str, str, bytes | str]]:
    """Path, key and ``loaded`` of all samples of these sources."""
    found = samples([str(source) for source in sources], listed, column=column)
    return [(sample.path, sample.key, loaded(sample, **options)) for sample in found]


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


def rows(out: Path) -> list[dict[str, Any]]:
    """The rows of an output, of its parts in their order where it has some, without how long they took."""
    import pyarrow.parquet as parquet

    if out.is_dir():
        return [row for part in sorted(out.glob("part-*")) for row in rows(part)]
    readers: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
        ".csv": csv_rows,
        ".json": lambda path: json.loads(path.read_text(encoding="utf-8")),
        ".jsonl": json_rows,
        ".parquet": lambda path: parquet.read_table(path).to_pylist(),
    }
    return [{name: value for name, value in row.items() if name != "latency_ms"} for row in readers[out.suffix](out)]


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
