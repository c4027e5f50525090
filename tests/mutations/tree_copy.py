"""Copies of the repository, in which faults are planted: the tree itself is only read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from planted import Fault

_BUILT = ("model_repository/*/1/*.onnx", "model_repository/*/certificate.json")
"""What a build writes and Git ignores: tests need it, and to build it takes long."""


class NotPlanted(Exception):
    """A fault cannot be planted."""


def environment(folder: Path) -> dict[str, str]:
    """The environment of a test run in a copy: its modules come first, and their bytecode is cached there."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": str(folder)}


class TreeCopy:
    """One copy, which is used for one fault after the other."""

    def __init__(self, pristine: Path, folder: Path) -> None:
        """Copy ``pristine``, which ``copy_tree`` made, to ``folder``."""
        self._pristine, self.folder = pristine, folder
        shutil.copytree(pristine, folder, symlinks=True)
        self._files = [path.relative_to(pristine) for path in _files_below(pristine)]
        self._plantings = 0

    def plant(self, fault: Fault) -> None:
        """Write a fault into the copy. Raises ``NotPlanted`` where its snippet is not there exactly once."""
        path = self.folder / fault.file
        try:
            text = path.read_bytes().decode()
        except OSError as error:
            raise NotPlanted(f"{fault.file}: {error.strerror}") from None
        if (count := text.count(fault.old)) != 1:
            raise NotPlanted(f"{fault.file} holds the snippet {count} times")
        path.write_bytes(text.replace(fault.old, fault.new).encode())
        # Caches know a source by its size and time. No two plantings have the same time, and none has the original's.
        self._plantings += 1
        time = (self._pristine / fault.file).stat().st_mtime_ns + self._plantings * 10 * 10**9
        os.utime(path, ns=(time, time))

    def restore(self) -> None:
        """Make the copy as it was, whatever a fault or a test has changed; caches stay."""
        subprocess.run(["git", "clean", "-fdq"], cwd=self.folder, check=True)
        for name in self._files:
            original, path = self._pristine / name, self.folder / name
            if original.is_symlink():
                continue
            if not path.is_file() or _state(path) != _state(original):
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(original, path)


def copy_tree(root: Path, folder: Path) -> None:
    """Copy a repository as it is now, with what is not committed, what is built, and an index of its own."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    names = sorted({name for name in listed.stdout.decode().split("\0") if name and os.path.lexists(root / name)})
    for name in names:
        _copy(root / name, folder / name)
    for pattern in _BUILT:
        for path in root.glob(pattern):
            if not (folder / path.relative_to(root)).exists():
                _copy(path, folder / path.relative_to(root))
    # Some tests ask Git for the files of the repository.
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    paths = ["--pathspec-from-file=-", "--pathspec-file-nul"]
    subprocess.run(["git", "add", "-f", *paths], cwd=folder, input="\0".join(names).encode(), check=True)


def check_imports(folder: Path) -> None:
    """Make sure that a copy's modules are imported there, though others are installed. Raises ``RuntimeError``."""
    program = (
        "import onestream, onestream.serving.models, os; print(os.path.realpath(onestream.serving.models.__file__))"
    )
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {program!r}], check=True, cwd='/')"
    done = subprocess.run(
        [sys.executable, "-c", child], cwd=folder, env=environment(folder), capture_output=True, text=True, check=False
    )
    found = Path(done.stdout.strip() or "/")
    if not found.is_relative_to(folder.resolve()):
        raise RuntimeError(f"in {folder} onestream is imported from {found}\n{done.stderr}")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target, follow_symlinks=False)


def _files_below(folder: Path) -> list[Path]:
    found = []
    for parent, folders, files in os.walk(folder):
        if ".git" in folders:
            folders.remove(".git")
        found += [Path(parent) / name for name in files]
    return found


def _state(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_mode
