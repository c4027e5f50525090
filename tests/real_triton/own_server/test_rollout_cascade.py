"""Another version of a cascade takes the place of the served one while clients go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from colored_cells import FORMS, drawn, picture, write_clip
from patience import PATIENCE_S, wait_until
from rollouts import (
    GRID_NETWORKS,
    LABELS,
    build_grid,
    clients_that_go_on,
    grid_version,
    refused,
    replace_network,
    version_2,
)
from watched import Watched

from onestream.cli.demo_page.served import Served
from onestream.client import Client
from onestream.serving.built.versions import Pin, read_pins
from onestream.serving.server.control_socket import ControlSession
from onestream.serving.server.server import Server
from onestream.serving.server.triton.model_processes import find_model_processes

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]


@pytest.fixture(scope="module")
def grids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one photo, of five cells."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "five.png").write_bytes(picture(drawn(5, 1)))
    return folder


def asking(count: int) -> Callable[[Client, str], int]:
    """Asks a form about a picture with so many regions; the version that its answer is of."""
    content = picture(drawn(count, count))
    return lambda client, form: grid_version(client.infer(form, content))


def wait_for_grid(server: Server, version: int) -> None:
    """Wait until no process of another version is left."""
    own, other = (f"grid{'' if one == 1 else '_v2'}" for one in (version, 3 - version))
    others = {f"{other}_{network}" for network in GRID_NETWORKS}

    def is_alone() -> bool:
        running = {process.model for process in find_model_processes(server.pid).running}
        return {f"{own}_{network}" for network in GRID_NETWORKS} <= running and not running & others

    wait_until(is_alone)


def streamed_version(server: Server, folder: Path) -> set[str]:
    """The labels that a stream's frames have."""
    clip = write_clip(folder / "clip.mkv", [drawn(9, 2)])
    with Client(server.grpc_url, timeout_s=60) as client, client.stream(clip, pipeline="grid") as frames:
        (result,) = frames
    return {label.decode() for label in result.tensors["labels"]}


def test_clients_of_a_cascade_notice_nothing_either(server: Server, grids: Path, tmp_path: Path) -> None:
    """Each version asks its own networks; no request inside one is lost, though its networks are unloaded at once."""
    restarts = server.restarts
    # A request is inside for long where regions are many.
    questions = [asking(7), asking(250)]
    options = {"photos": [grids], "wait_for_version": wait_for_grid}
    with (
        clients_that_go_on([server.grpc_url, server.http_url], FORMS, questions) as seen,
        version_2(server, "grid", "--watch-s=0", **options) as there,
    ):
        told = " ".join(there.output.split())
        assert "photos 1 same object 100.0% score difference" in told
        assert "pixels" not in told, "no model of a cascade shows them"
        assert "kept: grid is version 2, after a restart too; version 1 is unloaded" in told
        assert streamed_version(server, tmp_path) <= set(LABELS[2])
        offer = Served(server.grpc_url).offer()
        assert list(offer.forms["grid"].stages) == ["find", "name"], "the demo page knows it as a cascade"
        assert not [why for why in offer.unreadable if "grid" in why]
    there.check(seen, FORMS, lambda version: version, more_than=2)
    assert server.restarts == restarts
    with Client(server.grpc_url) as client:
        client.wait_until_ready(timeout_s=PATIENCE_S)


def test_a_version_of_a_cascade_that_is_not_right_is_refused(folder: Path, server: Server, grids: Path) -> None:
    """It answers otherwise; then a network, which Triton does not know that it needs, cannot be loaded."""
    repository = build_grid(folder, 3)
    for reason in ("the same object for 0.0% of the objects found", "'grid_v3_name_model' failed"):
        refused(server, "grid", grids, reason)
        wait_for_grid(server, 1)
        with Client(server.grpc_url, timeout_s=60) as client:
            client.wait_until_ready(timeout_s=PATIENCE_S)
            for form in FORMS:
                assert grid_version(client.infer(form, picture(drawn(20, 4)))) == 1
        replace_network(repository / "grid_v3_name_model", b"not a network")


# The last with this cascade: version 2 stays.
def test_what_a_request_inside_asks_for_is_there_until_it_is_answered(watched: Watched) -> None:
    """The switch is over, and all of version 1 but this request, before its first network answers."""
    server, find = watched.server, "grid_find_model"
    with (
        Client(server.grpc_url, timeout_s=PATIENCE_S, retries=0) as client,
        ThreadPoolExecutor(2) as pool,
        ControlSession(server.repository) as session,
    ):
        session.ask("load_version", "grid", 2)
        with watched.held(find):
            inside = pool.submit(client.infer, "grid", picture(drawn(9, 1)), request_id="inside")
            wait_until(lambda: watched.asked(find, "inside"))
            session.ask("switch", "grid", 2)
            kept = pool.submit(session.ask, "keep", "grid")
            wait_until(lambda: read_pins(server.repository).get("grid") == Pin(version=2, previous=1))
            time.sleep(1)
            assert not inside.done()
            assert not kept.done()
        assert grid_version(inside.result()) == 1
        kept.result()
        wait_for_grid(server, 2)
