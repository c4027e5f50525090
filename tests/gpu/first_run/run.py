"""One call on a bare machine with a GPU: takes what it carries, runs commands, and writes what became of them.

    OUT=results python3 tests/gpu/first_run/run.py figures
    OUT=results python3 tests/gpu/first_run/run.py figures rates waits    # two of its commands

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
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[3]
LIMIT_S = 560
"""Of a whole call, below the ten minutes that a lent machine may give a command."""
_TAIL = 2000
_LOG = 512 * 1024
"""The end of each command's output that is kept."""
_GRACE_S = 10.0
_LEAST_S = 5.0
ENTROPY = (
    "entropy on the GPU",
    "entropy on the CPU",
    "entropy on the GPU above 0.25 MP",
    "entropy on the GPU above 1 MP",
)
HARDWARE = ("hardware 0.5", "hardware 0.9", "hardware 1")
_PIECE = re.compile(r"(.+\.whl)\.piece-(\d+)")


PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=45")
KERNELS = (sys.executable, "-m", "benchmarks.gpu.kernels", "--points", "POINTS")
CODEC = (sys.executable, "-m", "benchmarks.gpu.codec", "--points", "POINTS", "--setting")
RATES = (sys.executable, "-m", "benchmarks.gpu", "--commit", "carried", "--out", "OUT", "--photos", "96", "--only")
FUSED = (*RATES, "fused", "--sizes", "500x375", "1920x1080", "mixed")
# The bindings look for functions of newer drivers, which the driver answers with an error.
MEMCHECK = (
    *("compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no"),
    *("--track-stream-ordered-races", "all", "--error-exitcode", "3"),
)
_SUITE = "tests/gpu/test_gpu_"
CALLS: dict[str, list[tuple[str, tuple[str, ...], int]]] = {
    "figures": [
        ("smoke", (*PYTEST, f"{_SUITE}smoke.py"), 60),
        ("kernels", KERNELS, 50),
        (
            "waits",
            (*PYTEST, f"{_SUITE}parity.py", f"{_SUITE}one_stream.py", "-k", "rgb-bilinear or take_time or waits_once"),
            60,
        ),
        *((f"codec {at}", (*CODEC, name), 40) for at, name in enumerate(ENTROPY)),
        ("rates", (*FUSED, "--minutes", "2.5"), 170),
        # A process each, and last: they may leave the GPU unusable.
        *((name, (*CODEC, name), 40) for name in HARDWARE),
    ],
    "tests": [
        ("parity", (*PYTEST, f"{_SUITE}parity.py", "-k", "(cvcuda or no_jpeg) and not hq and not hardware"), 170),
        ("varied", (*PYTEST, f"{_SUITE}varied.py", "-k", "not dali"), 60),
        ("memory", (*PYTEST, f"{_SUITE}memory.py", "-k", "not dali"), 150),
        ("races", (*PYTEST, f"{_SUITE}races.py"), 60),
        ("memcheck", (*MEMCHECK, *PYTEST, f"{_SUITE}races.py"), 120),
    ],
    "engines": [
        ("cascade", (*PYTEST, f"{_SUITE}cascade.py"), 90),
        ("engines", (*PYTEST, "tests/serving/engine/test_engine_on_gpu.py"), 90),
        ("one-stream", (*PYTEST, f"{_SUITE}one_stream.py", "-k", "not dali and not cpu"), 120),
        ("rates", (*FUSED, "--minutes", "3"), 240),
    ],
    "carry": [],
    "video": [
        ("dali", (*PYTEST, "tests/gpu", "-k", "dali or (one_stream and cpu)"), 180),
        ("video", (*PYTEST, f"{_SUITE}video.py", f"{_SUITE}matte.py"), 140),
        ("hq", (*PYTEST, f"{_SUITE}parity.py", "-k", "hq"), 60),
        ("hardware", (*PYTEST, f"{_SUITE}parity.py", "-k", "hardware"), 80),
    ],
    "preprocessing": [
        ("preprocessing", (*RATES, "preprocess", "--minutes", "2", "--settings", "^(?!.*hardware)"), 180),
        ("hardware", (*RATES, "preprocess", "--minutes", "0.6", "--settings", "hardware"), 80),
    ],
}
"""Of each call its commands, as (label, command, seconds at most).

*OUT* is the folder for a command's results, *POINTS* the file to which every figure is appended when it is there.
"""


class Call:
    """One call: ``name`` is that of its results. Ends the process with ``finish``."""

    def __init__(self, name: str) -> None:
        self._name, self._began = name, time.monotonic()
        self.out = Path(os.environ["OUT"])
        self.out.mkdir(parents=True, exist_ok=True)
        kept = Path(os.environ.get("FIRST_RUN_KEPT", "/tmp/onestream-first-run"))
        """Lives from call to call, while the machine is held."""
        self.points = self.out / "points.jsonl"
        self._site, self._pieces = kept / "site", kept / "pieces"
        self._report: dict[str, Any] = {"call": name, "wheels": self._take_wheels(), **machine(), "commands": []}
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(self._site), *filter(None, [os.environ.get("PYTHONPATH")])]),
            # The machine's last: the driver may be mounted where only it leads.
            "LD_LIBRARY_PATH": os.pathsep.join(
                [*_cuda_folders([str(self._site), *sys.path]), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
            ),
            "PYTHONUNBUFFERED": "1",
            # What hangs shows where, by SIGABRT.
            "PYTHONFAULTHANDLER": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "ONESTREAM_CACHE": str(kept / "cache"),
            # What is skipped has shown nothing.
            "ONESTREAM_NO_SKIPS": "1",
            "ONESTREAM_GPU_POINTS": str(self.points),
        }
        self._report["library_path"] = self._environment["LD_LIBRARY_PATH"]
        print(json.dumps(self._report, indent=2), flush=True)

    def run(self, label: str, command: Sequence[str], *, limit_s: float) -> None:
        """Run a command for at most ``limit_s`` seconds and what is left of the call, whatever becomes of it."""
        places = {"OUT": self.out / label, "POINTS": self.points}
        command = [str(places.get(one, one)) for one in command]
        left_s = LIMIT_S - 3 * _GRACE_S - (time.monotonic() - self._began)
        began, before = time.monotonic(), self._count()
        environment = self._environment | {"ONESTREAM_GPU_RESULTS": str(self.out / label)}
        with tempfile.TemporaryFile() as written:
            if left_s < _LEAST_S:
                code: int | str = "no time was left"
            else:
                code = _outcome(command, environment, written, min(limit_s, left_s))
            written.seek(max(0, written.seek(0, os.SEEK_END) - _LOG))
            text = written.read().decode(errors="replace")
        with (self.out / f"{self._name}.log").open("a") as log:
            log.write(f"===== {label}: {' '.join(command)}\n{text}\n")
        entry = {"label": label, "command": " ".join(command), "exit": code, "seconds": time.monotonic() - began}
        self._report["commands"].append(entry | {"points": self._count() - before, "tail": text[-_TAIL:]})
        self._save()
        print(text[-_TAIL:], flush=True)

    def _count(self) -> int:
        return len(self.points.read_bytes().splitlines()) if self.points.exists() else 0

    def finish(self) -> None:
        """Save, print one line for each command, and end with 1 where one failed."""
        self._save()
        for entry in self._report["commands"]:
            print(f"{entry['label']:32} exit {entry['exit']}  {entry['seconds']:.0f} s  {entry['points']} figures")
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


def _outcome(command: list[str], environment: dict[str, str], written: IO[bytes], limit_s: float) -> int | str:
    """Its exit status, negative for a signal, or in words why there is none; its processes are ended with it."""
    try:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return str(error)
    # By the first signal pytest ends with what it has; by the second Python says where it hangs.
    for number in (None, signal.SIGINT, signal.SIGABRT, signal.SIGKILL):
        if number is not None:
            os.killpg(process.pid, number)
        try:
            code = process.wait(limit_s if number is None else _GRACE_S)
        except subprocess.TimeoutExpired:
            continue
        return code if number is None else "ran out of time"
    return "ran out of time, and cannot be killed"


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
        if label in sys.argv[2:] or not sys.argv[2:]:
            call.run(label, command, limit_s=limit_s)
    call.finish()
