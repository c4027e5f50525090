"""The commands of docs/bulk.md run, those about Ray on a cluster that they start themselves.

Its program runs in test_ray_datasets. Of what is marked *text* nothing can run here: the command for GPUs needs one,
and the image needs Docker; the page says of both that they never ran.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from bulk_fakes import rows
from pages import Shell, blocks
from ray_clusters import PHOTOS, ROOT
from shared_server import SharedServer
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.pipelines.networks.package_files import default_cache_dir
from onestream.serving.server.triton.ports import free_port

PAGE = (ROOT / "docs" / "bulk.md").read_text(encoding="utf-8").partition("\n## Ray\n")[2]
ALL_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
BLOCKS = [block for language, block in ALL_BLOCKS if language == "bash"]
PORTS_OF_RAY = range(10001, 20000)
"""Those that it gives to its clients and workers by default; a head on one of them does not start."""


@pytest.mark.needs_triton
@pytest.mark.slow
def test_the_commands_of_the_page_run(server: SharedServer, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "shards").mkdir()
    for number in range(2):
        with tarfile.open(tmp_path / "shards" / f"train-{number:04}.tar", "w") as tar:
            for photo in PHOTOS:
                tar.add(photo, photo.name)
    shell = Shell(tmp_path, f"--url {server.grpc_address}")
    examples, loop, *_ray = blocks("bulk.md", "bash")
    lines = [line for line in examples.splitlines() if line]
    assert len(lines) == 4
    for line in lines:
        shell.line(line)
    assert (tmp_path / "photos.csv").read_text().count("\n") == 1 + len(PHOTOS)
    assert parquet.read_table(tmp_path / "train.parquet").num_rows == 2 * len(PHOTOS)
    found = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert {row["labels"][0] for row in found} >= {"espresso", "missile"}
    (tmp_path / "train.parquet").unlink()
    shell.line(loop)
    assert parquet.read_table(tmp_path / "train.parquet").num_rows == 2 * len(PHOTOS)


def test_every_block_is_known_here() -> None:
    """A new one is to be run, or to be told why not."""
    assert [language for language, _ in ALL_BLOCKS] == ["bash", "text", "python", "text", "bash"]
    on_gpus, _ = (block for language, block in ALL_BLOCKS if language == "text")
    program, name, *arguments = shlex.split(on_gpus)
    assert program == "onestream"
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).stdout
    for option in (one for one in arguments if one.startswith("--")):
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", shown), option


def in_text(pattern: str) -> str:
    """The one command in the page's sentences that begins so."""
    (found,) = {one for one in re.findall(r"`([^`\n]+)`", PAGE) if one.startswith(pattern)}
    return str(found)


@pytest.mark.slow
def test_the_four_commands_run_with_a_token_and_a_machine_that_joins(repository: Path, tmp_path: Path) -> None:
    del repository
    pytest.importorskip("ray")
    for name in ("examples", "pipelines", "model_repository"):
        (tmp_path / name).symlink_to(ROOT / name)
    # Not in tmp_path: sockets have short names only.
    port, session = free_port("127.0.0.1", but=PORTS_OF_RAY), Path(tempfile.mkdtemp(prefix="ray-"))
    shell = Shell(
        tmp_path,
        RAY_AUTH_MODE="token",
        # Then Ray listens on all addresses, and refuses clients without the token.
        RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="1",
        # The token is written into it.
        HOME=str(tmp_path),
        ONESTREAM_CACHE=str(default_cache_dir()),
    )
    (tmp_path / "bin" / "ray").symlink_to(Path(sys.executable).with_name("ray"))
    lines = [line for line in BLOCKS[0].splitlines() if line]
    assert len(lines) == 4
    build, alone, head, together = lines
    assert head.startswith("ray start --head")
    # Other loopback addresses than 127.0.0.1, with which Ray refuses to make a cluster of several machines.
    small = f"--object-store-memory {100 << 20} --node-ip-address 127.0.0"
    joins = in_text("ray start --address").replace("HEAD:6379", f"127.0.0.2:{port}")
    lines = [
        in_text("ray get-auth-token"),
        build,
        alone,
        # All work is that of the machine that joins.
        f"{head.replace('6379', str(port))} {small}.2 --num-cpus 0 --temp-dir {session}",
        f"{joins} {small}.3 --num-cpus 1",
        # There may be other clusters here, one of which auto would find.
        together.replace("auto", f"127.0.0.2:{port}"),
    ]
    try:
        for line in lines:
            shell.line(line)
    finally:
        stop_own(session)
    assert (tmp_path / ".ray" / "auth_token").read_text()
    assert len(rows(tmp_path / "labels")) == 6
    assert rows(tmp_path / "labels") == rows(tmp_path / "labels-of-cluster")


def stop_own(session: Path) -> None:
    """End the processes of this cluster alone; ``ray stop`` ends every Ray of this machine."""
    import psutil

    every = psutil.process_iter(["cmdline"])
    own = {process for process in every if str(session) in " ".join(process.info["cmdline"] or [])}
    # Its agents have other names, and outlive it.
    own |= {child for process in own for child in process.children(recursive=True)}
    for process in own:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(own, timeout=30)
    shutil.rmtree(session, ignore_errors=True)


def test_the_command_that_computes_machines_prints_the_page_s_table() -> None:
    words = shlex.split(BLOCKS[1])
    assert words[:3] == ["onestream", "bench", "scale"]
    done = CliRunner().invoke(app, words[1:])
    assert done.exit_code == 0, done.stderr
    printed = [" ".join(row.split()) for row in done.stdout.splitlines() if row.strip()]
    table = PAGE.partition("| machines | images/s | hours |")[2].partition("\n\n")[0].splitlines()[2:]
    assert [" ".join(row.replace("|", " ").split()) for row in table] == printed[1:]


@pytest.mark.slow
def test_two_launchers_train_together(tmp_path: Path) -> None:
    """Of the command in docs/training.md one process a machine; here both machines are this one."""
    (line,) = (block.strip() for block in blocks("training.md", "bash") if "--nnodes" in block)
    for label in ("a", "b"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for photo in PHOTOS:
            shutil.copy(photo, tmp_path / "photos" / label)
    line = line.replace("HEAD:29500", f"127.0.0.1:{free_port('127.0.0.1')}").replace("FOLDER", str(tmp_path / "photos"))
    command = [sys.executable, "-m", "torch.distributed.run", *line.split()[1:], "--epochs", "1"]
    options = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, "text": True}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    launched = [subprocess.Popen(command, **options, **pipes) for _ in range(2)]
    done = [process.communicate(timeout=240) for process in launched]
    assert [process.returncode for process in launched] == [0, 0], done
    said = "".join(out for out, _ in done)
    assert said.startswith("epoch 1: 12 images, 1 steps, mean loss ")
