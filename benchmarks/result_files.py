"""Files of results: where they lie, what they say of the machine and the commit, and how all of one kind are read."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FROZEN = ConfigDict(frozen=True, extra="forbid")
Raw = dict[str, Any]
"""Results that are kept as they were measured, without a class of their own."""

_Kind = TypeVar("_Kind")


class Machine(BaseModel):
    """Where it was measured."""

    model_config = FROZEN

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    system: str

    @property
    def slug(self) -> str:
        """A folder name, such as ``amd-epyc-2-cores``."""
        return slug_of(f"{self.cpu} {self.cores} cores")


class Run(BaseModel):
    """What every run says of itself."""

    model_config = FROZEN

    started_utc: str
    commit: str
    machine: Machine
    versions: dict[str, str] = {}

    @property
    def dated(self) -> str:
        """When it was, and of what, as tables say it."""
        return dated(self.model_dump(include={"started_utc", "commit"}))


def begin(packages: Iterable[str] = ()) -> Run:
    """A run that begins now; ``packages`` do its work."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Run(started_utc=now, commit=commit(), machine=this_machine(), versions=versions(packages))


def slug_of(name: str) -> str:
    """A name as that of a folder: small letters, digits and ``-``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def this_machine() -> Machine:
    """Describe the machine; nothing of it names a host or a user."""
    release = platform.freedesktop_os_release()
    return Machine(
        cpu=_cpu_model(),
        cores=os.cpu_count() or 1,
        memory_gib=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        system=release.get("PRETTY_NAME", release["NAME"]),
    )


def _cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of Python and of packages, *not installed* where one is missing."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def commit() -> str:
    """The commit that is checked out, with ``+changes`` where files differ from it; *unknown* outside of git."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def short_commit(name: str) -> str:
    """A commit as tables name it: its first 12 digits, and ``+changes`` where files differed from it."""
    return name[:12] + ("+changes" if name.endswith("+changes") else "")


def dated(results: Raw) -> str:
    """The date and the commit of results, as tables say them."""
    return f"{results['started_utc'][:10]}, commit {short_commit(results['commit'])}"


def add_out(parser: argparse.ArgumentParser, *, else_where: str = "benchmarks/results") -> None:
    """The option for another folder of results."""
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"where to write; without it {else_where}")


def path_in(folder: Path | None, slug: str, name: str) -> Path:
    """The file ``name`` of the machine ``slug`` in a folder of results, benchmarks/results where none is given."""
    return (folder or RESULTS) / slug / name


def read(folder: Path, name: str, kind: type[_Kind]) -> list[_Kind]:
    """The content of all files with this name below a folder, by path. Raises ``ValueError`` for one that is none.

    ``folder`` may be that of one machine.
    """
    adapter = TypeAdapter(kind)
    return [adapter.validate_json(path.read_bytes()) for path in sorted(folder.rglob(name))]


def write(path: Path, results: BaseModel | Raw) -> None:
    """Write results as JSON, into a folder that is made where it is missing."""
    text = results.model_dump_json(indent=1) if isinstance(results, BaseModel) else json.dumps(results, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
