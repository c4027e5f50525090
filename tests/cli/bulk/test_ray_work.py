"""What a worker does with its parts, in this process: no cluster is needed for that."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bulk_fakes import Bulk, failing_after, labels
from typer.testing import CliRunner

from onestream.cli.bulk.journal import JournalError
from onestream.cli.main import app

pytest.importorskip("ray")

import ray

import onestream.ray
from onestream.cli.bulk.ray import command
from onestream.cli.bulk.ray import worker as worker_module
from onestream.cli.bulk.ray.answering import ByServer
from onestream.cli.bulk.ray.attempts import AttemptCounts
from onestream.cli.bulk.ray.folder import OutputFolder
from onestream.cli.bulk.ray.machines import WrongMachine, installed
from onestream.cli.bulk.ray.options import RayOptions
from onestream.cli.bulk.ray.parts import Counts, Part
from onestream.cli.bulk.ray.run import NoRoom
from onestream.cli.bulk.ray.worker import (
    OF_NO_IMAGE,
    OF_THE_MOMENT,
    Work,
    Worker,
    WorkerFailed,
    items,
    items_of,
    list_parts,
)
from onestream.cli.bulk.rows import Row
from onestream.cli.bulk.sources import Sample
from onestream.client import BadImage, Classification, Result, Tensors


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This process is on a machine of a cluster, and its folder stays as it is."""
    monkeypatch.setattr(worker_module, "here", lambda: "10.0.0.7")
    # Ray would start a cluster here to answer.
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_actor_id=lambda: "an actor"))
    monkeypatch.chdir(tmp_path)


def begun(folder: Path, *sources: str) -> Work:
    """The work of a run that has begun in ``folder/out``, as another process gets it."""
    out = OutputFolder(str(folder / "out"))
    told = {"sources": sources, "to": out.place, "repository": folder, "pipeline": "classify", "file_format": "jsonl"}
    numbers = {"top": 1, "files_per_part": 2, "cpus_per_worker": 1, "gpus_per_worker": 0, "in_flight": 1}
    others = {"overwrite": False, "every_file": False, "priority": "low"}
    untold = dict.fromkeys(("column", "address", "workers", "url", "token", "timeout_s"))
    work = Work.of(RayOptions(**told, **numbers, **others, **untold), out)
    work.out.begin({"sources": list(sources)}, anew=False)
    return pickle.loads(pickle.dumps(work))


class Reads:
    """A row for each image that can be read, and for each that cannot; ``meets`` is told its name before."""

    example: Result = Classification((), model="", request_id="", latency_ms=0)

    def __init__(self, meets: Callable[[str], object] = lambda _: None) -> None:
        self._meets = meets

    def open(self) -> Reads:
        return self

    def rows(self, samples: Iterator[Sample]) -> Iterator[Row]:
        for sample in samples:
            self._meets(sample.path)
            if os.path.exists(sample.path):
                yield Row(sample.path, sample.key, self.example)
            else:
                yield Row(sample.path, sample.key, error="unreadable_input", reason="gone")


def listed_parts(work: Work) -> list[Any]:
    return [item for batch in list_parts({}, work=work, finished=frozenset()) for item in items_of(batch)]


def done(work: Work, parts: list[Any], reads: Reads | None = None, attempts: Any = None) -> list[Any]:
    """What a worker gives for parts."""
    worker = Worker(work=work, answering=reads or Reads(), asked_by=installed(), attempts=attempts or AttemptCounts())
    return items_of(worker(items(parts)))


@pytest.mark.parametrize("sources", ["folder", "pattern", "list"])
@pytest.mark.parametrize("mount_point", ["missing", "empty"])
def test_a_machine_without_the_mount_of_the_sources_is_refused(tmp_path: Path, sources: str, mount_point: str) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    for name in "abc":
        (mount / f"{name}.jpg").write_bytes(b"photo")
    (tmp_path / "list").write_text(f"{mount}/a.jpg\n{mount}/b.jpg\n{mount}/c.jpg\n")
    source = {"folder": "mount", "pattern": "mount/*.jpg", "list": "-"}[sources]
    work = replace(begun(tmp_path, source), listed=str(tmp_path / "list"))
    parts = listed_parts(work)
    (mount / "c.jpg").unlink()
    # One file alone that is gone meanwhile is a row.
    assert done(work, parts) == [Counts(2), Counts(1, 1)]
    shutil.rmtree(mount)
    if mount_point == "empty":
        mount.mkdir()
    for error in done(work, parts):
        check_unseen(error, r"\S*mount/[ac]\.jpg")


def check_unseen(error: Any, file: str) -> None:
    assert isinstance(error, WrongMachine)
    assert re.search(rf"10\.0\.0\.7 does not see {file}; take a folder that all", str(error))


def test_a_name_without_a_folder_is_one_of_who_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The worker's own folder has other files, and even one of that name."""
    for folder in ("asker", "worker"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jpg").write_bytes(b"photo")
    monkeypatch.chdir(tmp_path / "asker")
    work = begun(tmp_path, "a.jpg")
    parts = listed_parts(work)
    monkeypatch.chdir(tmp_path / "worker")
    shutil.rmtree(tmp_path / "asker")
    (error,) = done(work, parts)
    check_unseen(error, f"{tmp_path}/asker/a.jpg")


def test_a_part_whose_first_file_is_nowhere_is_refused_where_the_others_are_missing(tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    (tmp_path / "mount" / "b.jpg").write_bytes(b"photo")
    work = begun(tmp_path, "nowhere/a.jpg", "mount/b.jpg")
    parts = listed_parts(work)
    assert done(work, parts) == [Counts(2, 1)]
    shutil.rmtree(tmp_path / "mount")
    (error,) = done(work, parts)
    check_unseen(error, f"{tmp_path}/mount/b.jpg")


def test_what_opening_warns_of_is_told_once_with_the_machine(tmp_path: Path) -> None:
    """A file that no machine can open is a row; the driver cannot open these either."""

    class Warns(Reads):
        def open(self) -> Reads:
            warnings.warn("int8 gains nothing here", stacklevel=2)
            return self

    work = begun(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    expected = [Counts(2, 2, "machine 10.0.0.7: int8 gains nothing here"), Counts(1, 1)]
    assert done(work, listed_parts(work), Warns()) == expected


def test_a_folder_of_the_same_name_that_is_no_shared_one_is_refused(tmp_path: Path) -> None:
    """Each machine has run the same command alone before, so each has the file that says what the run is about."""
    first = begun(tmp_path)
    first.enter()
    (tmp_path / "out").rename(tmp_path / "of-the-first-machine")
    with pytest.raises(WrongMachine, match=r"10\.0\.0\.7 does not see \S+/out \(no _run\.json is there\)"):
        first.enter()
    second = begun(tmp_path)
    second.enter()
    with pytest.raises(WrongMachine, match=r"does not see \S+/out \(the _run\.json there is of another run\); take a"):
        first.enter()
    # The same command goes on where it began, also there.
    begun(tmp_path).enter()
    second.enter()


def test_what_ended_its_process_too_often_is_not_begun_again(tmp_path: Path) -> None:
    """Killed as by an exception that nothing here catches; from the second attempt on, image by image."""
    work = begun(tmp_path, "a.jpg", "b.jpg")
    (part,) = listed_parts(work)
    attempts, met = AttemptCounts(), list[str]()

    class Killed(BaseException):
        pass

    def dies(name: str) -> None:
        met.append(name)
        if name == "b.jpg":
            raise Killed

    for _ in range(5):
        with pytest.raises(Killed):
            done(work, [part], Reads(dies), attempts)
    (error,) = done(work, [part], Reads(dies), attempts)
    assert isinstance(error, WorkerFailed)
    assert str(error) == (
        "part 0, from 'a.jpg' on, lost its process, or its machine, 5 times; replace the last image that "
        "was begun by an empty one to go on without it: 'b.jpg'"
    )
    assert met == ["a.jpg", "b.jpg"] * 5
    # Others are still done, and what was killed four times alone is done and forgotten.
    other = Part(1, part.units[:1])
    for _ in range(4):
        attempts.begin("part 1, from 'a.jpg' on,")
    for _ in range(2):
        assert done(work, [other], Reads(dies), attempts) == [Counts(1, 1)]


class Unsendable(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


@pytest.mark.parametrize(
    ("met", "expected"),
    [
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
        (JournalError("another run"), "JournalError: another run"),
        (KeyError("boxes"), "WorkerFailed: KeyError: 'boxes'"),
        (ValueError("no such column"), "WorkerFailed: ValueError: no such column"),
        (MemoryError(), "WorkerFailed: MemoryError"),
        (Unsendable("one", "two"), "WorkerFailed: Unsendable: one and two"),
    ],
)
def test_whatever_a_worker_meets_is_an_error_that_users_are_told(tmp_path: Path, met: Exception, expected: str) -> None:
    def meets(_: str) -> None:
        raise met

    work = begun(tmp_path, "a.jpg")
    (error,) = done(work, listed_parts(work), Reads(meets))
    assert f"{type(error).__name__}: {error}" == expected
    assert isinstance(error, OF_NO_IMAGE + OF_THE_MOMENT)


def test_what_fails_at_the_beginning_is_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, repository: Path, tmp_path: Path
) -> None:
    def fails() -> None:
        raise ray.exceptions.GetTimeoutError("no answer\n(and where)")

    def refused(*options: str) -> str:
        words = ["bulk", "a.jpg", "--ray", "--to", str(tmp_path / "out"), "--repository", str(tmp_path), *options]
        said = CliRunner().invoke(app, words, catch_exceptions=False)
        assert said.exit_code == 2
        return said.output

    monkeypatch.setattr(command, "connected", lambda _: nullcontext())
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 1.0}}])
    monkeypatch.setattr(command, "check_all", fails)
    cluster = refused()
    assert "GetTimeoutError: no answer" in cluster
    assert "and where" not in cluster
    monkeypatch.setattr(command, "check_all", lambda: None)
    assert "has no classify_fused; build it with onestream build" in refused()
    no_room = "no machine of the cluster has the 1 CPU and 1 GPU that a worker was to reserve; there are 1 with 1 CPU"
    assert no_room in refused("--gpus-per-worker", "1")
    with pytest.raises(NoRoom, match=no_room):
        onestream.ray.predict(None, "classify", repository=repository, gpus_per_worker=1)


@pytest.mark.parametrize("takes", [b"\x89PNG", b"BM", b"RIFF"])
def test_a_server_that_refuses_the_photos_of_the_package_is_asked_with_others(bulk: Bulk, takes: bytes) -> None:
    def answer(data: bytes) -> Tensors:
        if not data.startswith(takes):
            raise BadImage("unsupported_format", "another one")
        return labels(b"taken")

    bulk.transport.answer = answer
    asked = ByServer("fake", None, "classify", top=1, in_flight=1, timeout_s=None, priority="low")
    opened = asked.open()  # its client, once collected, would close the transport that both share
    assert opened.example.labels[0].label == "taken"
    bulk.transport.answer = failing_after(0, BadImage("corrupt", "the file ends, early"))
    with pytest.raises(BadImage, match="the file ends, early"):
        asked.open()
