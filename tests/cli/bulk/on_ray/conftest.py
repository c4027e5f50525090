"""One cluster of Ray for the tests of this folder, to which their process is connected."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from ray_clusters import BulkOnRay, add_machine, cluster
from typer.testing import CliRunner

from onestream.cli.main import app


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folders in which the two machines of the cluster keep what they are sent."""
    return [tmp_path_factory.mktemp("cache") for _ in range(2)]


@pytest.fixture(scope="session")
def nodes(request: pytest.FixtureRequest, caches: list[Path]) -> Iterator[Any]:
    """A head that has no CPU for workers, and two machines with one each, which know the server of S3."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        # Workers stay for the next test: by default they end after a second, and each start takes many.
        patch.setenv("RAY_idle_worker_killing_time_threshold_ms", "600000")
        patch.setenv("RAY_num_workers_soft_limit", "2")
        # Ray would kill workers where other programs of this machine take its memory.
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")
        has_s3 = importlib.util.find_spec("moto") is not None
        variables = request.getfixturevalue("server_of_s3").variables if has_s3 else {}
        with pytest.MonkeyPatch.context() as for_s3:
            # Also for the head, where the sources may be listed.
            for name, value in variables.items():
                for_s3.setenv(name, value)
            made = stack.enter_context(cluster())
        made.add_usual = lambda cache: add_machine(made, ONESTREAM_CACHE=str(cache), **variables)
        for cache in caches:
            made.add_usual(cache)
        yield made


@pytest.fixture(scope="module")
def bulk_on_ray(nodes: Any) -> Iterator[BulkOnRay]:
    """``onestream bulk --ray`` in this process, which is connected with the cluster."""
    import ray

    def run(*arguments: object, stdin: str | None = None) -> Result:
        words = ["bulk", *map(str, arguments), "--ray"]
        return CliRunner().invoke(app, words, input=stdin, catch_exceptions=False, env={"COLUMNS": "200"})

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    with pytest.MonkeyPatch.context() as patch:
        # Ray Data writes to the standard error of the first command, which is closed when the next one runs.
        patch.setattr(logging, "raiseExceptions", False)
        ray.init(nodes.address, log_to_driver=False)
        yield run
        ray.shutdown()
