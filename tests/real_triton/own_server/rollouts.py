"""Version 2 takes the place of version 1 and gives it back, while clients go on asking."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import yaml
from builds import build
from colored_cells import fields, write
from networks import mean_color, strongest_channel
from onnx import numpy_helper
from typer.testing import CliRunner, Result

from onestream.cli.main import app
from onestream.client import Client
from onestream.serving.built.versions import Pin, read_pins
from onestream.serving.server.server import Server

T = TypeVar("T")
GRID_NETWORKS = ("find_model", "name_model")
LABELS = {1: ["red", "green", "blue"], 2: ["rot", "grün", "blau"]}
FACTORS = {1: 1.0, 2: 0.5, 3: -1.0}
"""Of the scores: above 0.6 by version 1's network, and below by version 2's. By 3's the worst class is best."""
_PAUSE_S = 0.05
"""Between a client's questions, so that all of them leave the server time for what changes."""


@dataclass(frozen=True)
class Seen(Generic[T]):
    """What a client of a form saw, and when it asked."""

    asked_at: float
    form: str
    answer: T | Exception


@contextmanager
def clients_that_go_on(
    urls: Sequence[str], forms: Sequence[str], questions: Sequence[Callable[[Client, str], T]]
) -> Iterator[list[Seen[T]]]:
    """A client of each form at each URL, which asks one question after the other until the block ends.

    The list grows meanwhile; an error of any kind is an answer too.
    """
    stop, seen = threading.Event(), list[Seen[T]]()

    def go_on(url: str, form: str) -> None:
        with Client(url, timeout_s=60) as client:
            while not stop.wait(_PAUSE_S):
                for question in questions:
                    asked_at = time.monotonic()
                    try:
                        seen.append(Seen(asked_at, form, question(client, form)))
                    except Exception as error:  # any at all
                        seen.append(Seen(asked_at, form, error))

    threads = [threading.Thread(target=go_on, args=(url, form)) for url in urls for form in forms]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def rollout(server: Server, pipeline: str, *arguments: str, photos: Sequence[Path | str]) -> Result:
    """By the command."""
    fixed = [f"--repository={server.repository}", f"--url={server.grpc_url}", "--watch-s=0.5", "--yes"]
    return CliRunner().invoke(app, ["rollout", pipeline, *fixed, *(f"--photos={one}" for one in photos), *arguments])


@dataclass
class Version2:
    """What the command said when version 2 took the place, and when that was and was over."""

    output: str
    switched: float
    returning: float = 0.0
    returned: float = 0.0

    def check(
        self, seen: Sequence[Seen[Any]], forms: Sequence[str], version_of: Callable[[Any], int], *, more_than: int
    ) -> None:
        """Expect answers of both versions in each form, each of the version of its time, and no error."""
        assert [entry for entry in seen if isinstance(entry.answer, Exception)] == []
        counted: Counter[tuple[str, int]] = Counter()
        for entry in seen:
            version = version_of(entry.answer)
            counted[entry.form, version] += 1
            if self.switched < entry.asked_at < self.returning:
                assert version == 2
            if entry.asked_at > self.returned:
                assert version == 1
        assert all(counted[form, version] > more_than for form in forms for version in (1, 2)), counted


@contextmanager
def version_2(
    server: Server,
    pipeline: str,
    *arguments: str,
    photos: Sequence[Path],
    wait_for_version: Callable[[Server, int], object],
) -> Iterator[Version2]:
    """Let version 2 be served until the block ends, then version 1 again."""
    result = rollout(server, pipeline, "--to=2", *arguments, photos=photos)
    assert result.exit_code == 0, result.output
    found = Version2(result.stdout, time.monotonic())
    wait_for_version(server, 2)
    assert read_pins(server.repository)[pipeline] == Pin(version=2, previous=1)
    yield found
    found.returning = time.monotonic()
    result = rollout(server, pipeline, "--back", photos=photos)
    assert result.exit_code == 0, result.output
    found.returned = time.monotonic()
    wait_for_version(server, 1)


def build_own(folder: Path, version: int, *, factor: float = 1.0, value: int = 114) -> Path:
    """Build a version of ``own`` whose scores are ``factor`` times those of version 1, on a border of ``value``."""
    network = mean_color((1, 3, 48, 64))
    (weights,) = network.graph.initializer
    weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights) * np.float32(factor), weights.name))
    (folder / "own.onnx").write_bytes(network.SerializeToString())
    operations = [
        {"op": "decode"},
        {"op": "letterbox", "size": [48, 64], "value": value},
        {"op": "normalize", "mean": [0.5] * 3, "std": [0.25] * 3},
    ]
    postprocess = {"kind": "classification", "top_k": 2, "activation": "none"}
    # One process of each model: starting them is what takes the time of these tests.
    serving = {"cpu_instances": 1}
    (folder / "own.yaml").write_text(
        yaml.safe_dump({"preprocess": {"operations": operations}, "postprocess": postprocess, "serving": serving})
    )
    build(folder / "own.yaml", folder=folder / "repository", onnx_file=folder / "own.onnx", version=version)
    return folder / "repository"


def build_grid(folder: Path, version: int) -> Path:
    """Build a version of ``grid``, with labels and scores of its own."""
    described = fields()
    described["stages"]["name"]["postprocess"]["labels"] = LABELS.get(version, LABELS[1])
    networks = write(folder, **described)
    strongest_channel(networks["name"], factor=FACTORS[version])
    build(folder / "grid.yaml", folder=folder / "repository", onnx_files=networks, version=version)
    return folder / "repository"


def refused(server: Server, pipeline: str, photos: Path, reason: str) -> None:
    result = rollout(server, pipeline, "--to=3", photos=[photos])
    assert result.exit_code == 1
    assert reason in " ".join(result.output.split())
    assert str(server.repository) not in result.output


def replace_network(model: Path, content: bytes) -> None:
    """In the place of its file, which others may share."""
    network = model / "1" / "model.onnx"
    network.unlink()
    network.write_bytes(content)


def grid_version(answer: dict[str, Any]) -> int:
    """The version of ``grid`` that an answer is of: its labels, and the network that gave its scores."""
    labels, scores = {label.decode() for label in answer["labels"][0]}, answer["scores"][0]
    (version,) = [one for one, known in LABELS.items() if labels <= set(known)]
    assert (scores > 0.6).all() if version == 1 else (scores < 0.6).all()
    return version
