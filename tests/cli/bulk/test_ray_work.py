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
from bulk_fakes import Bulk, labels
from typer.testing import CliRunner

from onestream.cli.bulk.journal import JournalError
from onestream.cli.main import app

pytest.importorskip("ray")

import ray

from onestream.cli.bulk.ray import command
from onestream.cli.bulk.ray import worker as worker_module
from onestream.cli.bulk.ray.answering import ByServer
from onestream.cli.bulk.ray.attempts import AttemptCounts
from onestream.cli.bulk.ray.folder import OutputFolder
from onestream.cli.bulk.ray.machines import WrongMachine, installed
from onestream.cli.bulk.ray.options import RayOptions
from onestream.cli.bulk.ray.parts import Counts, Part
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


def begun(folder: Path, *sources: str, **changed: Any) -> Work:
    """The work of a run that has begun in ``folder/out``, as another process gets it."""
    options = RayOptions(
        **{
            "sources": sources,
            "to": str(folder / "out"),
            "overwrite": False,
            "every_file": False,
            "column": None,
            "pipeline": "classify",
            "repository": folder,
            "top": 1,
            "file_format": "jsonl",
            "files_per_part": 2,
            "address": None,
            "workers": None,
            "cpus_per_worker": 1,
            "gpus_per_worker": 0,
            "url": None,
            "token": None,
            "in_flight": 1,
            "timeout_s": None,
            "priority": "low",
            **changed,
        }
    )
    work = Work.of(options, OutputFolder(str(options.to)))
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
        assert isinstance(error, WrongMachine)
        assert re.search(r"10\.0\.0\.7 does not see \S*mount/[ac]\.jpg; take a folder that all", str(error))


def test_what_the_one_that_asks_does_not_see_either_is_a_row(tmp_path: Path) -> None:
    work = begun(tmp_path, "nowhere/a.jpg", "nowhere/b.jpg")
    assert done(work, listed_parts(work)) == [Counts(2, 2)]


def test_a_name_without_a_folder_is_one_in_the_folder_of_the_one_that_asks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
    assert isinstance(error, WrongMachine)
    assert f"10.0.0.7 does not see {tmp_path}/asker/a.jpg; take a folder that all" in str(error)


def test_a_part_whose_first_file_is_nowhere_is_refused_where_the_others_are_missing(tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    (tmp_path / "mount" / "b.jpg").write_bytes(b"photo")
    work = begun(tmp_path, "nowhere/a.jpg", "mount/b.jpg")
    parts = listed_parts(work)
    assert done(work, parts) == [Counts(2, 1)]
    shutil.rmtree(tmp_path / "mount")
    (error,) = done(work, parts)
    assert isinstance(error, WrongMachine)
    assert f"10.0.0.7 does not see {tmp_path}/mount/b.jpg; take a folder that all" in str(error)


class Warns(Reads):
    """Warns when it is opened."""

    def open(self) -> Reads:
        warnings.warn("int8 gains nothing here", stacklevel=2)
        return self


def test_what_opening_warns_of_is_told_once_with_the_machine(tmp_path: Path) -> None:
    work = begun(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    first, second = done(work, listed_parts(work), Warns())
    assert first == Counts(2, 2, "machine 10.0.0.7: int8 gains nothing here")
    assert second == Counts(1, 1)


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
def test_whatever_a_worker_meets_comes_back_as_an_error_that_users_are_told(
    tmp_path: Path, met: Exception, expected: str
) -> None:
    def meets(_: str) -> None:
        raise met

    work = begun(tmp_path, "a.jpg")
    (error,) = done(work, listed_parts(work), Reads(meets))
    assert f"{type(error).__name__}: {error}" == expected
    assert isinstance(error, OF_NO_IMAGE + OF_THE_MOMENT)


def test_a_cluster_that_fails_at_the_beginning_is_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail() -> None:
        raise ray.exceptions.GetTimeoutError("no answer\n(and where)")

    monkeypatch.setattr(command, "connected", lambda _: nullcontext())
    monkeypatch.setattr(command, "check_all", fail)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 1.0}}])
    said = CliRunner().invoke(app, ["bulk", "a.jpg", "--ray", "--to", str(tmp_path / "out")], catch_exceptions=False)
    assert said.exit_code == 2
    assert "GetTimeoutError: no answer" in said.output
    assert "and where" not in said.output


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
    bulk.transport.answer = lambda _: labels(b"bad")
    with pytest.raises(BadImage, match="the file ends, early"):
        asked.open()
