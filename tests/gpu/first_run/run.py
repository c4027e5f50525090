"""One call on a bare machine with a GPU: takes what it carries, runs commands, and writes what became of them.

    OUT=results python3 tests/gpu/first_run/run.py smoke

Wheels come whole or in pieces, in any number of calls, anywhere under the folder that the environment variable CARRIED
names. Results go under the folder that OUT names.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
LIMIT_S = 560
"""Of a whole call, below the ten minutes that a lent machine may give a command."""
_TAIL = 2000
_PIECE = re.compile(r"(.+\.whl)\.piece-(\d+)")


PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
RATES = (sys.executable, "-m", "benchmarks.gpu", "--commit", "carried", "--only", "fused", "--out", "OUT")
MEMCHECK = ("compute-sanitizer", "--tool", "memcheck", "--track-stream-ordered-races", "all", "--error-exitcode", "3")
_SUITE = "tests/gpu/test_gpu_"
CALLS: dict[str, list[tuple[str, tuple[str, ...], int]]] = {
    "smoke": [
        ("smoke", (*PYTEST, f"{_SUITE}smoke.py"), 60),
        ("first", (*PYTEST, f"{_SUITE}parity.py", f"{_SUITE}one_stream.py", "-k", "rgb-bilinear or take_time"), 300),
    ],
    "parity": [
        ("parity", (*PYTEST, f"{_SUITE}parity.py", "-k", "cvcuda and not hq"), 440),
        ("varied", (*PYTEST, f"{_SUITE}varied.py", "-k", "not dali"), 100),
    ],
    "one_stream": [("one-stream", (*PYTEST, f"{_SUITE}one_stream.py", "-k", "not dali and not cpu"), 540)],
    "memory": [("memory", (*PYTEST, f"{_SUITE}memory.py", "-k", "not dali"), 540)],
    "races": [
        ("races", (*PYTEST, f"{_SUITE}races.py"), 120),
        ("memcheck", (*MEMCHECK, *PYTEST, f"{_SUITE}races.py"), 420),
    ],
    "carry": [],
    "dali_video": [
        ("dali", (*PYTEST, "tests/gpu", "-k", "dali or (one_stream and cpu)"), 300),
        ("video", (*PYTEST, f"{_SUITE}video.py", f"{_SUITE}matte.py"), 260),
    ],
    "rates": [("rates", (*RATES, "--only", "preprocess", "--minutes", "6"), 540)],
    "engines": [
        ("engines", (*PYTEST, "tests/serving/engine/test_engine_on_gpu.py"), 200),
        ("cascade", (*PYTEST, f"{_SUITE}cascade.py"), 90),
        ("one-stream", (*PYTEST, f"{_SUITE}one_stream.py", "-k", "not dali and not cpu"), 110),
        ("rates", (*RATES, "--minutes", "2"), 160),
    ],
}
"""Of each call its commands, as (label, command, seconds at most); *OUT* is the folder for a command's results."""


class Call:
    """One call: ``name`` is that of its results. Ends the process with ``finish``."""

    def __init__(self, name: str) -> None:
        self._name, self._began = name, time.monotonic()
        self.out = Path(os.environ["OUT"])
        self.out.mkdir(parents=True, exist_ok=True)
        kept = Path(os.environ.get("FIRST_RUN_KEPT", "/tmp/onestream-first-run"))
        """Lives from call to call, while the machine is held."""
        self._site, self._pieces = kept / "site", kept / "pieces"
        self._report: dict[str, Any] = {"call": name, "wheels": self._take_wheels(), **machine(), "commands": []}
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(self._site), *filter(None, [os.environ.get("PYTHONPATH")])]),
            # The machine's last: the driver may be mounted where only it leads.
            "LD_LIBRARY_PATH": os.pathsep.join(
                [*_cuda_folders([str(self._site), *sys.path]), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
            ),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "ONESTREAM_CACHE": str(kept / "cache"),
            # What is skipped has shown nothing.
            "ONESTREAM_NO_SKIPS": "1",
        }
        self._report["library_path"] = self._environment["LD_LIBRARY_PATH"]
        print(json.dumps(self._report, indent=2), flush=True)

    def run(self, label: str, command: Sequence[str], *, limit_s: float) -> None:
        """Run a command for at most ``limit_s`` seconds and what is left of the call."""
        command = [str(self.out / label) if one == "OUT" else one for one in command]
        left_s = LIMIT_S - (time.monotonic() - self._began)
        began = time.monotonic()
        log = self.out / f"{label}.log"
        environment = self._environment | {"ONESTREAM_GPU_RESULTS": str(self.out / label)}
        with log.open("wb") as written:
            try:
                code: int | str = subprocess.run(
                    command,
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=written,
                    stderr=subprocess.STDOUT,
                    timeout=max(1.0, min(limit_s, left_s)),
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                code = "ran out of time"
            except OSError as error:
                code = str(error)
        text = log.read_text(errors="replace")
        entry = {"label": label, "command": " ".join(command), "exit": code, "seconds": time.monotonic() - began}
        self._report["commands"].append(entry | {"tail": text[-_TAIL:]})
        self._save()
        print(text[-_TAIL:])

    def finish(self) -> None:
        """Save, print one line for each command, and end with 1 where one failed."""
        self._save()
        for entry in self._report["commands"]:
            print(f"{entry['label']:20} exit {entry['exit']}  {entry['seconds']:.0f} s")
        raise SystemExit(any(entry["exit"] != 0 for entry in self._report["commands"]))

    def _save(self) -> None:
        (self.out / f"{self._name}.json").write_text(json.dumps(self._report, indent=2) + "\n")

    def _take_wheels(self) -> dict[str, list[str]]:
        """Unpack the wheels that are whole by now, without pip, which replaces folders that several wheels fill."""
        for folder in (self._site, self._pieces):
            folder.mkdir(parents=True, exist_ok=True)
        carried = ROOT / os.environ.get("CARRIED", ".gpu-wheels")
        for path in sorted(carried.rglob("*.whl*")) if carried.exists() else []:
            # The folder of that name is where wheels lie before they are cut.
            if path.parent.name != "wheels":
                (self._pieces / path.name).write_bytes(path.read_bytes())
        unpacked = []
        for name in sorted({_wheel_of(path.name) for path in self._pieces.iterdir()}):
            if _unpack(self._pieces, name, self._site):
                unpacked.append(name)
        return {"unpacked": unpacked, "waiting": sorted(path.name for path in self._pieces.iterdir())}


def machine() -> dict[str, Any]:
    """What the machine is; its GPUs with memory and driver as nvidia-smi tells them."""
    packages = ("torch", "numpy", "cuda-core", "cuda-bindings", "onnx", "onnxruntime", "pillow")
    installed = {dist.metadata["Name"]: dist.version for dist in metadata.distributions()}
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "packages": {name: version for name, version in installed.items() if str(name).lower() in packages},
        "programs": {one: shutil.which(one) for one in ("nvidia-smi", "nvcc", "compute-sanitizer", "ncu")},
        "libcuda": _complaint_of("libcuda.so.1"),
    }
    if found["programs"]["nvidia-smi"]:
        asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader"]
        found["gpus"] = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return found


def _complaint_of(library: str) -> str:
    """Why a library cannot be loaded, or *loads*."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return "loads"


def _wheel_of(name: str) -> str:
    found = _PIECE.fullmatch(name)
    return found[1] if found else name


def _unpack(pieces: Path, name: str, site: Path) -> bool:
    """Whether the pieces of a wheel are there, which then is unpacked and its pieces removed."""
    parts = sorted(pieces.glob(f"{name}.piece-*"))
    whole = pieces / name
    if parts:
        if [int(part.name.rpartition("-")[2]) for part in parts] != list(range(len(parts))):
            return False
        with whole.open("wb") as joined:
            for part in parts:
                joined.write(part.read_bytes())
    # The end of the archive comes last.
    if not zipfile.is_zipfile(whole):
        if parts:
            whole.unlink()
        return False
    with zipfile.ZipFile(whole) as wheel:
        wheel.extractall(site)
    for path in (whole, *parts):
        path.unlink()
    return True


def _cuda_folders(path: Sequence[str]) -> list[str]:
    """Where packages of CUDA's libraries have them, what was carried before what the machine has."""
    return [str(folder) for entry in path if entry for folder in sorted(Path(entry).glob("nvidia/*/lib"))]


if __name__ == "__main__":
    call = Call(sys.argv[1])
    for label, command, limit_s in CALLS[sys.argv[1]]:
        call.run(label, command, limit_s=limit_s)
    call.finish()
