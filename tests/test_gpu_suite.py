"""The GPU suite and the calls of its first run go to their ends in host memory, without what a bare machine lacks.

So a GPU's time is not spent on their mistakes.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu.first_run import carry
from gpu.first_run import run as first_run

ROOT = Path(__file__).parent.parent
BASE_MIB = 17
"""Of the wheels of the first call, stripped."""
SCRIPT = ROOT / "tests" / "gpu" / "first_run" / "run.py"

# For every process of a call: hides packages, and measures for a moment where a GPU would be measured for minutes.
_SITE = """
import os
import sys
sys.path[:0] = [{tests!r}, {root!r}]
import absent_packages
SHORT = {{
    "benchmarks.gpu": "--minutes 0.05 --photos 2 --rounds 1 --seconds 0.05 --batches 2 "
    "--fused-batches 2 --sizes 500x375",
    "benchmarks.gpu.kernels": "--sizes 50x37 --megabytes 0.01",
    "benchmarks.gpu.codec": "--sizes 500x375 --photos 2 --threads 1 2 --streams 1 2 --batch 2 --seconds 0.01",
}}
for name in [one for one in sys.orig_argv if one in SHORT]:
    sys.path[:0] = [os.path.join({tests!r}, "benchmarks")]
    import gpu_bench_on_host
    sys.argv = [name, *sys.orig_argv[sys.orig_argv.index(name) + 1 :], *SHORT[name].split()]
    module = "benchmarks.gpu.__main__" if name == "benchmarks.gpu" else name
    code = gpu_bench_on_host.main(module, broken=os.environ.get("BROKEN"))
    sys.stdout.flush()
    os._exit(code)
"""

# Until the wheels for video are there, a machine has neither DALI nor PyAV. The pretended GPU itself needs them.
_BEFORE_VIDEO = """
import sys
import pytest
import gpu_suite_on_host
from onestream.preprocess import BackendMissing
from onestream.preprocess.backends import dali

class NoDali:
    def __init__(self, *_arguments, **_options):
        raise BackendMissing("there is no DALI yet")

dali.Dali = NoDali
for name in [*sys.modules]:
    if name.partition(".")[0] == "av" or name.startswith("onestream.preprocess.video"):
        del sys.modules[name]
sys.modules["av"] = sys.modules["PyNvVideoCodec"] = None

@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items[:] = {item.function: item for item in items}.values()  # one case of each test
"""

# In the place of compute-sanitizer: runs what comes after its options.
_SANITIZER = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do echo "$1 $2"; shift 2; done
exec "$@"
"""


@pytest.mark.slow
def test_the_gpu_suite_runs_in_host_memory(tmp_path: Path, repository: Path) -> None:
    assert repository.is_dir()
    images = "(cvcuda and (crop or flips or letterboxes or damaged)) or cut_short or no_jpeg"
    # One kind of video runs the suite's code; all kinds do in tests/preprocess/video/test_stream_gpu.py.
    videos = "gpu_video and (h264 or size) and not (frames or groups or annex)"
    mattes = "(gpu_matte and not memory)"
    regions = "gpu_regions or gpu_varied or (gpu_cascade and not memory)"
    chosen = f"one_stream or {regions} or {images} or ({videos}) or ({mattes})"
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "tests"),
        "ONESTREAM_GPU_RESULTS": str(tmp_path),
        # NumPy's BLAS spins where several threads call it on few cores.
        "OPENBLAS_NUM_THREADS": "1",
    }
    environment.pop("ONESTREAM_NO_SKIPS", None)
    plugins = ["-p", "absent_packages", "-p", "gpu_suite_on_host"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "tests/gpu", "-k", chosen],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-3000:]
    assert "GPU suite on host memory" in run.stdout
    saved = json.loads((tmp_path / "host-memory" / "gpu-suite.json").read_text())
    figures = {figure["what"]: figure["value"] for figure in saved["figures"]}
    # What the GPU decodes differs by a level there, in every sample.
    (largest,) = [value for what, value in figures.items() if what.startswith("cvcuda, crop: largest difference")]
    assert 0 < largest <= 2
    assert figures["engine"] == "HostEngine"
    assert figures["one stream: host waits of our own for a batch"] == 1
    assert figures["cascade: host waits of our own for a batch"] == 3
    assert figures["video, h264, nvdec: largest difference, levels"] == 0
    assert figures["matte: packets of composed H.264 that differ from the CPU's"] == 0


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a call; returns its results with ``exit``."""
    programs, hooks = tmp_path / "programs", tmp_path / "hooks"
    for folder in (programs, hooks):
        folder.mkdir()
    (programs / "compute-sanitizer").write_text(_SANITIZER)
    (programs / "compute-sanitizer").chmod(0o755)
    (hooks / "before_video.py").write_text(_BEFORE_VIDEO)
    (hooks / "sitecustomize.py").write_text(_SITE.format(tests=str(ROOT / "tests"), root=str(ROOT)))

    def run_call(
        name: str, *labels: str, options: str = "", carried: Path = tmp_path / "nothing", broken: str = ""
    ) -> dict[str, Any]:
        out = tmp_path / "out"
        environment = os.environ | {
            "OUT": str(out),
            "CARRIED": str(carried),
            "FIRST_RUN_KEPT": str(tmp_path / "kept"),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(hooks),
            "PYTEST_ADDOPTS": f"-p gpu_suite_on_host {options}",
            "OPENBLAS_NUM_THREADS": "1",
            "BROKEN": broken,
        }
        done = subprocess.run(
            [sys.executable, SCRIPT, name, *labels], env=environment, capture_output=True, text=True, check=False
        )
        results: dict[str, Any] = json.loads((out / f"{name}.json").read_text())
        return results | {"exit": done.returncode, "said": done.stdout + done.stderr}

    return run_call


@pytest.mark.night
@pytest.mark.parametrize("name", ["figures", "tests", "preprocessing"])
def test_a_call_runs_to_its_end(run: Run, name: str, repository: Path, tmp_path: Path) -> None:
    assert repository.is_dir()
    results = run(name, options="" if name == "preprocessing" else "-p before_video")
    assert results["exit"] == 0, results["said"]
    assert [entry["exit"] for entry in results["commands"]] == [0] * len(results["commands"])
    # What a lent machine gives back.
    assert len([path for path in (tmp_path / "out").rglob("*") if path.is_file()]) <= 8
    if name == "preprocessing":
        assert [*(tmp_path / "out" / "preprocessing").rglob("*.json")]
    else:
        (saved,) = [*(tmp_path / "out").glob(f"{results['commands'][0]['label']}/*/gpu-suite.json")]
        outcomes = json.loads(saved.read_text())["outcomes"]
        assert outcomes["passed"]
        assert outcomes["failed"] == outcomes["error"] == outcomes["skipped"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "how", "left"),
    [
        ("nvImageCodec", "fails", {"codec 0": 0, "kernels": 0}),
        ("nvImageCodec", "crashes", {"codec 0": -signal.SIGSEGV, "kernels": 0}),
        ("nvImageCodec", "hangs", {"codec 0": "ran out of time", "kernels": 0}),
        ("kernels", "fails", {"kernels": 0, "codec 0": 0}),
        ("kernels", "crashes", {"kernels": -signal.SIGSEGV, "codec 0": 0}),
        ("network", "fails", {"rates": 0, "hardware 1": 0}),
        ("network", "crashes", {"rates": -signal.SIGSEGV, "hardware 1": 0}),
    ],
)
def test_what_was_measured_before_a_library_breaks_is_there(
    run: Run, broken: str, how: str, left: dict[str, Any], repository: Path, tmp_path: Path
) -> None:
    """It breaks in each process after a while; every figure of before is kept, and the commands after it run."""
    assert repository.is_dir()
    results = run("figures", *left, broken=f"{broken} {how}")
    entries = {entry["label"]: entry for entry in results["commands"]}
    assert {label: entry["exit"] for label, entry in entries.items()} == left, results["said"]
    points = [json.loads(line) for line in (tmp_path / "out" / "points.jsonl").read_text().splitlines()]
    assert sum(entry["points"] for entry in entries.values()) == len(points)
    if broken == "network":
        (saved,) = [*(tmp_path / "out" / "rates").rglob("gpu.json")]
        assert {one["part"] for one in json.loads(saved.read_text())["rates"]} == {"decode alone"}
    else:
        label, part = ("codec 0", "codec") if broken == "nvImageCodec" else ("kernels", "kernel")
        assert entries[label]["points"] > 0
        assert [one for one in points if one["part"] == part and "failed" not in one]


def test_a_command_that_breaks_keeps_its_figures_and_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setenv("FIRST_RUN_KEPT", str(tmp_path / "kept"))
    monkeypatch.setattr(first_run, "_GRACE_S", 1.0)
    figure = "import os, signal, sys, time; print('{}', file=open(sys.argv[1], 'a'), flush=True); "
    hangs = "signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    call = first_run.Call("figures")
    for label, then in (("crashes", "os.abort()"), ("hangs", hangs), ("fails", "sys.exit(3)"), ("good", "")):
        call.run(label, (sys.executable, "-c", figure + then, "POINTS"), limit_s=3)
    monkeypatch.setattr(first_run, "LIMIT_S", 0)
    call.run("late", (sys.executable, "-c", figure, "POINTS"), limit_s=3)
    with pytest.raises(SystemExit):
        call.finish()
    commands = json.loads((tmp_path / "out" / "figures.json").read_text())["commands"]
    found = [(entry["label"], entry["exit"], entry["points"]) for entry in commands]
    assert found == [
        ("crashes", -signal.SIGABRT, 1),
        ("hangs", "ran out of time", 1),
        ("fails", 3, 1),
        ("good", 0, 1),
        ("late", "no time was left", 0),
    ]


def test_what_a_call_brings_is_stripped_cut_and_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the checkout as it is; a wheel for several Pythons has the builds of one."""
    assert carry.checkout_bytes() + carry.PIECE < carry.MOST - 4 * carry.MIB
    network = 18 * carry.MIB
    assert carry.checkout_bytes() + network + BASE_MIB * carry.MIB < carry.MOST - 4 * carry.MIB
    whole, names = tmp_path / "lib-1.whl", ["lib.cpython-312-x86_64-linux-gnu.so", "lib.py", "libnvx.so.3"]
    others = ["lib.cpython-311-x86_64-linux-gnu.so", "lib.cpython-314t-x86_64-linux-gnu.so", "include/lib.h"]
    with zipfile.ZipFile(whole, "w") as written:
        for name in (*names, *others):
            written.writestr(name, os.urandom(1000))
    (tmp_path / "stripped").mkdir()
    small = carry.stripped(whole, tmp_path / "stripped")
    assert zipfile.ZipFile(small).namelist() == names
    monkeypatch.setattr(carry, "PIECE", 1500)
    folders = carry.cut([small], tmp_path / "cut", "base", beside=100)
    pieces = [path for folder in folders for path in sorted(folder.iterdir())]
    assert [path.name for path in pieces] == [f"lib-1.whl.piece-{number:03}" for number in range(len(pieces))]
    assert b"".join(path.read_bytes() for path in pieces) == small.read_bytes()
    assert {path.stat().st_size for path in pieces[:-1]} == {1500}
    with pytest.raises(ValueError, match="64 can go"):
        carry.cut([small], tmp_path / "again", "base", beside=carry.MOST)


def test_device_code_for_other_gpus_is_left_out() -> None:
    """Headers and the code for one GPU stay in place; so does a container that has no code for it."""

    def container(*entries: tuple[int, int, bytes]) -> bytes:
        made = b"".join(
            struct.pack("<HHIQ12sI32s", kind, 257, 64, len(code), b"h", capability, b"h") + code
            for kind, capability, code in entries
        )
        return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(made)) + made

    several = (2, 80, b"A" * 999), (2, carry.CAPABILITY, b"B" * 777), (1, 120, b"C" * 555)
    kept = [(kind, at, code if at == carry.CAPABILITY else bytes(len(code))) for kind, at, code in several]
    newer = container((1, 80, b"P" * 100))
    before, after = b"code of the host", b"\x50\xed\x55\xba\x01\x00\x10\x00"
    library = before + container(*several) + newer + after
    assert carry.for_one_gpu(library) == before + container(*kept) + newer + after


def wheel(path: Path, name: str) -> bytes:
    """A wheel with two files, one of them in a folder that other wheels fill too."""
    with zipfile.ZipFile(path, "w") as written:
        written.writestr(f"{name}.py", f"NAME = {name!r}\n" + "#" * 3000)
        written.writestr(f"nvidia/{name}/lib/lib{name}.so", "a library")
    return path.read_bytes()


def test_wheels_come_whole_or_in_pieces_over_several_calls(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/local/nvidia/lib64")
    carried, site = tmp_path / "carried", tmp_path / "kept" / "site"
    content = wheel(tmp_path / "cut.whl", "cut")
    pieces = {f"cut-1.whl.piece-{number:03}": content[number * 1000 : number * 1000 + 1000] for number in range(4)}
    pieces["cut-1.whl.piece-003"] = content[3000:]
    (carried / "part-01").mkdir(parents=True)
    wheel(carried / "part-01" / "small-1.whl", "small")
    for name in ("cut-1.whl.piece-000", "cut-1.whl.piece-003"):
        (carried / "part-01" / name).write_bytes(pieces[name])
    (carried / "wheels").mkdir()
    (carried / "wheels" / "before-1.whl").write_bytes(b"what was cut")
    first = run("carry", carried=carried)["wheels"]
    assert first["unpacked"] == ["small-1.whl"]
    assert first["waiting"] == ["cut-1.whl.piece-000", "cut-1.whl.piece-003"]
    for name, piece in pieces.items():
        (carried / "part-01" / name).write_bytes(piece)
    results = run("carry", carried=carried)
    # The driver may be where only the machine's own path leads.
    assert str(site / "nvidia" / "cut" / "lib") in results["library_path"].split(":")
    assert results["library_path"].split(":")[-1] == "/usr/local/nvidia/lib64"
    second = results["wheels"]
    assert "cut-1.whl" in second["unpacked"]
    assert second["waiting"] == []
    assert (site / "cut.py").read_text().startswith("NAME = 'cut'")
    # pip would have replaced the folder that both fill.
    assert sorted(path.name for path in (site / "nvidia").iterdir()) == ["cut", "small"]
