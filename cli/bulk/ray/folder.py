"""The folder of the output, here or behind an address: a file for each part, which is complete or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

from onestream.cli.bulk.journal import JournalError, check_same_run, replace_durably
from onestream.cli.bulk.ray.parts import number_in
from onestream.preprocess.cpu.file_lock import locked
from onestream.preprocess.storage import remote

ABOUT = "_run.json"
"""Says what the run is about, from its beginning on."""
_RUN_ID = "run_id"
"""In ``ABOUT``: other folders of the same name, on machines that do not share this one, have another."""
_LOCK = "_lock"
COMPLETE = "_SUCCESS"
"""Is there when the output is complete, as of Spark and Hadoop; readers of Parquet pass over names with ``_``."""


class OutputFolder:
    """``OUT`` of a run. Nothing is held, so that it goes to any process.

    ``run_id`` is that of the run, from ``begin`` on; empty where the folder is of a version that knew none.
    """

    def __init__(self, place: str) -> None:
        self._is_remote = remote.is_address(place)
        # Workers have folders of their own that names would be relative to.
        self.place = place.rstrip("/") if self._is_remote else os.path.abspath(remote.local_path(place))
        self.run_id = ""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other runs out of a folder of this machine, which is made; a store knows no locks.

        Raises JournalError where one is at work there; OSError.
        """
        if self._is_remote:
            yield
            return
        os.makedirs(self.place, exist_ok=True)
        with ExitStack() as stack:
            # Some mounts have no locks.
            with suppress(OSError):
                stack.enter_context(locked(Path(self.place, _LOCK), waiting=self._refuse))
            yield

    def begin(self, about: Mapping[str, Any], *, anew: bool) -> None:
        """Make the folder for a run ``about`` these JSON values; ``anew`` deletes what earlier runs have written.

        Raises JournalError where it belongs to another run, FileExistsError where it is complete; OSError.
        """
        if self._is_remote:
            remote.make_folder(self.place)
        else:
            os.makedirs(self.place, exist_ok=True)
        names = self.names()
        if anew:
            for name in names:
                if number_in(name) is not None or name in (ABOUT, COMPLETE):
                    self._remove(name)
        elif COMPLETE in names:
            raise FileExistsError(f"{self.place} is complete already; --overwrite begins anew")
        elif ABOUT in names:
            begun = self._begun()
            self.run_id = begun.pop(_RUN_ID, "")
            check_same_run(self.place, begun, dict(about))
            return
        elif any(number_in(name) is not None for name in names):
            raise JournalError(f"{self.place} has parts of a run and no {ABOUT}; --overwrite begins anew")
        self.run_id = uuid4().hex
        self.write(ABOUT, json.dumps({**about, _RUN_ID: self.run_id}).encode())

    def check_run(self) -> None:
        """Raise JournalError where this process does not find the run that was begun; OSError."""
        if self._begun().get(_RUN_ID, "") != self.run_id:
            raise JournalError(f"the {ABOUT} there is of another run")

    def names(self) -> set[str]:
        """The names of complete files."""
        if self._is_remote:
            return {entry.name for entry in remote.entries(self.place)}
        return set(os.listdir(self.place))

    def read(self, name: str) -> bytes:
        """The content of a file. Raises OSError."""
        if self._is_remote:
            with remote.open_stream(remote.inside(self.place, name)) as file:
                return file.read()
        return Path(self.place, name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """Write a file that is complete or not there, however this process ends. Raises OSError."""
        temporary = f".{name}.{uuid4().hex}.tmp"
        if self._is_remote:
            remote.write_whole_file(
                remote.inside(self.place, name), content, temporary=remote.inside(self.place, temporary)
            )
            return
        path = Path(self.place, temporary)
        try:
            path.write_bytes(content)
            replace_durably(path, Path(self.place, name))
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Say that the output is complete, and delete what killed workers left."""
        for name in self.names():
            if name.startswith(".part-") and name.endswith(".tmp"):
                self._remove(name)
        self.write(COMPLETE, json.dumps(dict(summary)).encode() + b"\n")

    def _refuse(self) -> NoReturn:
        raise JournalError(f"another run writes {self.place}")

    def _begun(self) -> dict[str, Any]:
        try:
            begun = json.loads(self.read(ABOUT))
        except FileNotFoundError:
            raise JournalError(f"no {ABOUT} is there") from None
        except ValueError:
            begun = None
        if not isinstance(begun, dict):
            raise JournalError(f"the {ABOUT} there is none of onestream bulk; --overwrite begins anew")
        return begun

    def _remove(self, name: str) -> None:
        if self._is_remote:
            remote.remove(remote.inside(self.place, name))
        else:
            Path(self.place, name).unlink(missing_ok=True)
