"""Outputs in S3, on a real server of its protocol: written, and killed on the way."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from patience import wait_until

from onestream.cli.bulk.ray.folder import ABOUT, OutputFolder

pytest.importorskip("moto", reason="moto is missing, a server of S3's protocol")

from s3_server import S3Server

PART = "part-00000000-0123456789abcdef.jsonl"


@pytest.fixture
def out(s3: S3Server) -> OutputFolder:
    """The folder of a run that has begun."""
    made = OutputFolder(f"{s3.bucket()}/labels")
    made.begin({}, anew=False)
    return made


WRITES = """
import sys
from onestream.cli.bulk.ray.folder import OutputFolder
OutputFolder(sys.argv[1]).write(sys.argv[2], bytes(30 << 20))
"""


def test_a_part_half_of_which_was_sent_is_not_there(s3: S3Server, out: OutputFolder) -> None:
    with s3.held(lambda request: request.is_upload) as held:
        process = subprocess.Popen([sys.executable, "-c", WRITES, out.place, PART])
        wait_until(lambda: held.waiting or process.poll() is not None)
        assert out.names() == {ABOUT}
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert out.names() == {ABOUT}
    out.write(PART, b"whole")
    assert out.names() == {ABOUT, PART}
    assert out.read(PART) == b"whole"


def test_a_part_is_there_when_the_store_has_all_of_it(s3: S3Server, out: OutputFolder) -> None:
    with s3.held(lambda request: request.is_completion) as held, ThreadPoolExecutor(1) as thread:
        written = thread.submit(out.write, PART, b"rows")
        wait_until(lambda: held.waiting or written.done())
        assert out.names() == {ABOUT}
        held.let_go.set()
        written.result()
    assert out.read(PART) == b"rows"


def test_a_write_that_is_broken_off_leaves_no_file(out: OutputFolder) -> None:
    with pytest.raises(TypeError):
        out.write(PART, "no bytes")  # type: ignore[arg-type]
    assert out.names() == {ABOUT}
