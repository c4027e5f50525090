"""Fixtures: a real server of S3, and folders behind addresses; for the tests of commands and of training."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from s3_server import S3Server


@pytest.fixture(scope="session")
def server_of_s3() -> Iterator[S3Server]:
    pytest.importorskip("moto", reason="moto is missing, a server of S3's protocol")
    from s3_server import S3Server

    made = S3Server()
    yield made
    made.close()


@pytest.fixture
def s3(server_of_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, as the environment's variables say."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server_of_s3.variables.items():
        monkeypatch.setenv(name, value)
    server_of_s3.requests.clear()
    server_of_s3.most_reads = 0
    return server_of_s3


@pytest.fixture(params=["memory", "s3"])
def bucket(request: pytest.FixtureRequest) -> Callable[[Mapping[str, bytes]], str]:
    """Gives the address of a new folder with files, in S3 and on a file system that fsspec brings."""
    if request.param == "s3":
        return request.getfixturevalue("s3").bucket
    memory = pytest.importorskip("fsspec").filesystem("memory")

    def bucket(files: Mapping[str, bytes]) -> str:
        name = uuid.uuid4().hex
        for path, data in files.items():
            memory.pipe_file(f"/{name}/{path}", data)
        request.addfinalizer(lambda: memory.rm(f"/{name}", recursive=True))
        return f"memory://{name}"

    return bucket
