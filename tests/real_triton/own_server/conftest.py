"""One server for what changes, holds and kills models; the files of this folder run in one process, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import colored_cells
import pytest
from builds import build
from int8_networks import color_network, pipeline_file
from rollouts import build_grid, build_own
from shared_server import CLASSIFY
from small_models import running
from streamed import STREAMED
from trace_collector import collecting
from watched import CARRIED, FIND, NAME, WATCHED, Watched

from onestream.serving.server.server import Server
from onestream.serving.server.supervisor import RestartPolicy

TIGHT = {"max_memory_bytes": 1 << 20}
# No queue refuses anything for its own sake.
WAITING = {"max_batch_size": 1, "cpu_instances": 2, "max_queue_size": 64, "max_queue_ms": 1_000_000}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pipelines, and the second versions of those that have one; versions that are refused are built later."""
    folder = tmp_path_factory.mktemp("changed")
    repository = folder / "repository"
    build_own(folder, 1)
    # Other pixels and three times the scores: a mixture would be neither.
    build_own(folder, 2, factor=3.0, value=0)
    for version in (1, 2):
        build_grid(folder, version)
    file, network = pipeline_file(folder, color_network())
    build(file, folder=repository, onnx_file=network)
    for one in (CLASSIFY, STREAMED):
        written = one.write(folder)
        build(folder / f"{one.name}.yaml", folder=repository, onnx_file=written if isinstance(written, Path) else None)
    (folder / "carried").mkdir()
    networks = colored_cells.write(folder / "carried", name="carried", serving=WAITING, video=TIGHT)
    build(folder / "carried" / "carried.yaml", folder=repository, onnx_files=networks)
    for network in (FIND, NAME, "grid_find_model"):
        (repository / network / "1" / "model.py").write_text(WATCHED.format(folder=str(folder)))
    return folder


@pytest.fixture(scope="session")
def watched(folder: Path) -> Iterator[Watched]:
    """Not the shared one: what its names mean is changed, its networks are held, and its processes are killed.

    It traces each request. Clients that vanish may end Triton 2.51 (docs/security.md).
    """
    forms = [form for name in ("own", "colors", "grid", "classify") for form in (name, f"{name}_fused")]
    models = [*forms, "grid_video", *CARRIED, "carried_video", FIND, NAME, *STREAMED.models]
    events: list[str] = []
    options = {"models": models, "policy": RestartPolicy(drain_s=1), "on_event": events.append}
    with (
        collecting() as collector,
        running(folder / "repository", device="cpu", trace=collector.url, **options) as server,
    ):
        yield Watched(server, events, collector, folder)


@pytest.fixture(scope="session")
def server(watched: Watched) -> Server:
    return watched.server
