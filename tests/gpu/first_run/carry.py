"""Gets the wheels of a list, leaves out what Python 3.12 on an H100 does not need, and cuts them for several calls.

    python3 tests/gpu/first_run/carry.py base

Under ``.gpu-wheels``, ``base-1`` is for the first call that takes that list, ``base-2`` for the next one, and so on.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
MIB = 2**20
MOST = 64 * MIB
"""What one call can bring, the checkout among it."""
PIECE = 44 * MIB
CAPABILITY = 90
"""Compute capability of the GPU that runs it: an H100's or H200's."""
_CONTAINER = struct.pack("<IHH", 0xBA55ED50, 1, 16)
_MACHINE_CODE = 2
LISTS: dict[str, tuple[str, ...]] = {
    "base": (
        *("nvidia-nvimgcodec-cu13==0.9.0.20", "nvidia-nvjpeg==13.3.2.43", "cupti-python==13.0.1", "pyelftools"),
        *("pydantic==2.14.3", "pydantic-core==2.50.4", "typing-extensions", "annotated-types", "typing-inspection"),
        "cuda-core==1.2.2",
    ),
    "video": (
        *("nvidia-dali-cuda130==2.4.0", "gast", "makefun", "astunparse", "libcst", "nvtx", "optree"),
        *("nvidia-libnvcomp-cu13==5.3.0.16", "pynvvideocodec==2.2.4", "av>=16,<19"),
        "cvcuda-cu13==0.19.0",
    ),
    "engine": ("onnxruntime-gpu==1.31.1",),
}
WITH: dict[str, tuple[str, ...]] = {"base": ("model_repository/classify_fused/1/model.onnx",)}
"""What goes with the wheels of a list, in its first call."""
_PLATFORMS = (
    *("manylinux2014_x86_64", "manylinux1_x86_64"),
    *(f"manylinux_2_{number}_x86_64" for number in (5, 12, 17, 24, 26, 27, 28, 31, 34, 35, 38, 39)),
)
_OTHER_PYTHON = re.compile(r"(cpython-|python|abi|\bcp)3(?!12\b)\d+t?\b")
_NOT_NEEDED = re.compile(r"(^|/)include/|^samples/|\.data/data/|^nvidia/libnvcomp/bin/|\.(h|hpp|a)$")


def needed(name: str) -> bool:
    """Whether a file of a wheel is for Python 3.12, and no header, sample, tool or source of another's."""
    return not _OTHER_PYTHON.search(name) and not _NOT_NEEDED.search(name)


def for_one_gpu(library: bytes) -> bytes:
    """A shared library whose device code for other GPUs than ``CAPABILITY`` is zeros, which compress to nothing.

    Device code lies in containers: a header of 16 bytes with the size of what follows, then entries, each a header
    and its code. The driver reads the headers and loads the entry for its GPU, so they stay.
    """
    made, at = bytearray(library), 0
    while (at := library.find(_CONTAINER, at)) >= 0:
        entries = _entries(library, at)
        others = [entry for entry in entries if entry[:2] != (_MACHINE_CODE, CAPABILITY)]
        if len(others) < len(entries):
            for _, _, begin, end in others:
                made[begin:end] = bytes(end - begin)
        at += len(_CONTAINER)
    return bytes(made)


def _entries(library: bytes, at: int) -> list[tuple[int, int, int, int]]:
    """Of a container of device code: kind, compute capability, first byte and end of the code of each entry."""
    found: list[tuple[int, int, int, int]] = []
    if at + 16 > len(library):
        return []
    (size,) = struct.unpack_from("<Q", library, at + 8)
    at, end = at + 16, at + 16 + size
    while at < end <= len(library):
        kind, _, header, code = struct.unpack_from("<HHIQ", library, at)
        (capability,) = struct.unpack_from("<I", library, at + 28)
        if not 64 <= header <= 4096:
            # The magic number was other data.
            return []
        found.append((kind, capability, at + header, at + header + code))
        at += header + code
    return found


def stripped(wheel: Path, target: Path) -> Path:
    """A copy of a wheel without what is not needed, under its name in the folder ``target``."""
    copy = target / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(copy, "w", zipfile.ZIP_LZMA) as small:
        for entry in whole.infolist():
            if needed(entry.filename):
                content = whole.read(entry)
                code = for_one_gpu(content) if ".so" in Path(entry.filename).name else content
                small.writestr(entry, code, zipfile.ZIP_LZMA)
    return copy


def parts(sizes: Sequence[tuple[str, int]], room: int) -> Iterator[list[tuple[str, int, int]]]:
    """What each call brings of files of these sizes: (name, first byte, bytes), together at most ``room``."""
    part: list[tuple[str, int, int]] = []
    left = room
    for name, size in sizes:
        at = 0
        while at < size:
            if not left:
                yield part
                part, left = [], room
            taken = min(left, size - at)
            part.append((name, at, taken))
            at, left = at + taken, left - taken
    if part:
        yield part


def checkout_bytes() -> int:
    """What of the checkout travels: files that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    return sum((ROOT / name).lstat().st_size for name in names if name and (ROOT / name).exists())


def cut(wheels: Sequence[Path], folder: Path, name: str, *, beside: int) -> list[Path]:
    """Write the parts of a list as folders; ``beside`` bytes of its first call are taken by other things.

    Raises ``ValueError`` where a call would bring more than it can.
    """
    travels = checkout_bytes()
    pieces: Counter[str] = Counter()
    found = []
    for number, part in enumerate(parts([(str(one), one.stat().st_size) for one in wheels], PIECE), start=1):
        brought = travels + sum(size for _, _, size in part) + (beside if number == 1 else 0)
        if brought > MOST:
            raise ValueError(
                f"{name}-{number} makes {brought / MIB:.1f} MiB with the checkout; {MOST / MIB:.0f} can go"
            )
        own = folder / f"{name}-{number}"
        own.mkdir(parents=True)
        for file, at, size in part:
            with open(file, "rb") as read:
                read.seek(at)
                (own / f"{Path(file).name}.piece-{pieces[file]:03}").write_bytes(read.read(size))
            pieces[file] += 1
        print(f"{own}: {brought / MIB:.1f} MiB with the checkout")
        found.append(own)
    return found


def main() -> None:
    """Download, strip and cut one list."""
    name = sys.argv[1]
    folder, kept = ROOT / ".gpu-wheels", ROOT / ".cache" / "gpu-wheels" / name
    whole, small = kept / "whole", kept / "stripped"
    for old in (whole, small, *folder.glob(f"{name}-[0-9]*")):
        shutil.rmtree(old, ignore_errors=True)
    small.mkdir(parents=True)
    for wanted in LISTS[name]:
        tags = [word for one in _PLATFORMS for word in ("--platform", one)]
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        options = ["--python-version", "3.12", "--implementation", "cp", *tags, "-d", str(whole)]
        subprocess.run([*command, *options, wanted], check=True)
    wheels = [stripped(one, small) for one in sorted(whole.glob("*.whl"))]
    cut(wheels, folder, name, beside=sum((ROOT / one).stat().st_size for one in WITH.get(name, ())))


if __name__ == "__main__":
    main()
