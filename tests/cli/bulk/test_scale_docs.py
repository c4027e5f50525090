"""The commands of docs/scale.md run, on a cluster that they start themselves."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from ray_clusters import ROOT, rows

pytest.importorskip("ray")

PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.mark.slow
def test_the_four_commands_run(repository: Path, tmp_path: Path) -> None:
    del repository
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "onestream").write_text(f'#!/bin/sh\nexec {sys.executable} -m onestream "$@"\n')
    (programs / "onestream").chmod(0o755)
    (programs / "ray").symlink_to(Path(sys.executable).with_name("ray"))
    for name in ("examples", "pipelines", "model_repository"):
        (tmp_path / name).symlink_to(ROOT / name)
    # Not in tmp_path: sockets have short names only.
    port, session = free_port(), Path(tempfile.mkdtemp(prefix="ray-"))
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "RAY_AUTH_MODE": "token",
    }
    lines = [line for line in BLOCKS[0].replace("6379", str(port)).splitlines() if line]
    assert len(lines) == 4
    assert lines[2].startswith("ray start --head")
    # There may be other clusters here, one of which auto would find.
    lines[3] = lines[3].replace("auto", f"127.0.0.1:{port}")
    lines[2] += f" --num-cpus 1 --object-store-memory {100 << 20} --node-ip-address 127.0.0.1 --temp-dir {session}"
    try:
        for line in lines:
            done = subprocess.run(
                ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
            )
            assert done.returncode == 0, done.stderr
    finally:
        stop_own(session)
    assert len(rows(tmp_path / "labels")) == 6
    assert rows(tmp_path / "labels") == rows(tmp_path / "labels-of-cluster")


def stop_own(session: Path) -> None:
    """End the processes of this cluster alone; ``ray stop`` ends every Ray of this machine."""
    import psutil

    own = [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(session) in " ".join(process.info["cmdline"] or [])
    ]
    for process in own:
        process.kill()
    psutil.wait_procs(own, timeout=30)
    shutil.rmtree(session, ignore_errors=True)


def test_the_command_that_computes_machines_runs() -> None:
    line = BLOCKS[1].strip()
    assert line.startswith("onestream bench scale ")
    done = subprocess.run(
        [sys.executable, "-m", *line.split()], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    printed = [" ".join(row.split()) for row in done.stdout.splitlines() if row.strip()]
    # The page's rows under its heading and the line below that.
    table = PAGE.partition("| machines | images/s | hours |")[2].partition("\n\n")[0].splitlines()[2:]
    assert [" ".join(row.replace("|", " ").split()) for row in table] == printed[1:]


@pytest.mark.slow
def test_two_launchers_train_together(tmp_path: Path) -> None:
    """Of the page's command one process a machine; here both machines are this one."""
    line = BLOCKS[2].strip()
    for label in ("a", "b"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for photo in sorted((ROOT / "examples" / "photos").glob("*.jpg")):
            shutil.copy(photo, tmp_path / "photos" / label)
    line = line.replace("HEAD:29500", f"127.0.0.1:{free_port()}").replace("FOLDER", str(tmp_path / "photos"))
    command = [sys.executable, "-m", "torch.distributed.run", *line.split()[1:], "--epochs", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    launched = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    done = [process.communicate(timeout=240) for process in launched]
    assert [process.returncode for process in launched] == [0, 0], done
    said = "".join(out for out, _ in done)
    assert said.startswith("epoch 1: 12 images, 1 steps, mean loss ")
