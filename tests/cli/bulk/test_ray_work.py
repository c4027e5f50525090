"""What a worker does with its parts, in this process: no cluster is needed for that."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from onestream.cli.bulk.ray import worker as worker_module
from onestream.cli.bulk.ray.folder import OutputFolder
from onestream.cli.bulk.ray.machines import WrongMachine
from onestream.cli.bulk.ray.options import RayOptions
from onestream.cli.bulk.ray.worker import Work


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This process is on a machine of a cluster, and its folder stays as it is."""
    monkeypatch.setattr(worker_module, "here", lambda: "10.0.0.7")
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
    sent: Work = pickle.loads(pickle.dumps(work))
    return sent


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
