"""Another version of a cascade takes the place of the served one on a real Triton, while clients go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx
import pytest
from builds import build
from colored_cells import FORMS, drawn, fields, picture, write, write_clip
from networks import slow, strongest_channel
from patience import PATIENCE_S, wait_until
from rollouts import clients_that_go_on, rollout, version_2
from small_models import running

from onestream.cli.demo_page.served import Served
from onestream.client import Client
from onestream.serving.server.rollout_service import RolloutSession
from onestream.serving.server.server import Server
from onestream.serving.server.triton.model_processes import find_model_processes

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]

LABELS = {1: ["red", "green", "blue"], 2: ["rot", "grün", "blau"]}
FACTORS = {1: 1.0, 2: 0.5, 3: 1.0, 4: -1.0}
"""Of the scores: above 0.6 by version 1's network, and below by version 2's. By 4's the worst class is best."""
NETWORKS = ("find_model", "name_model")


def build_version(folder: Path, version: int) -> Path:
    """Build a version, with labels and scores of its own."""
    # A form shows its networks as many regions as there may be when it is loaded.
    described = fields() | {"limits": {"max_regions": 250}}
    described["stages"]["name"]["postprocess"]["labels"] = LABELS.get(version, LABELS[1])
    networks = write(folder, **described)
    strongest_channel(networks["name"], factor=FACTORS[version])
    build(folder / "grid.yaml", folder=folder / "repository", onnx_files=networks, version=version)
    return folder / "repository"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cascade_rollout")
    (folder / "photos").mkdir()
    (folder / "photos" / "five.png").write_bytes(picture(drawn(5, 1)))
    build_version(folder, 1)
    build_version(folder, 2)
    described = fields() | {"limits": {"max_regions": 150}}
    del described["stages"]["name"]["postprocess"]["labels"]
    networks = write(folder, name="patient", **described)
    onnx.save(slow(16), networks["name"])
    for version in (1, 2):
        build(folder / "patient.yaml", folder=folder / "repository", onnx_files=networks, version=version)
    return folder


@pytest.fixture(scope="module")
def own_server(folder: Path) -> Iterator[Server]:
    forms = [*FORMS, "grid_video", "patient", "patient_fused"]
    with running(folder / "repository", device="cpu", models=forms) as started:
        yield started


def version_of(answer: dict[str, Any]) -> int:
    """The version that an answer is of: its labels, and the network that gave its scores."""
    labels, scores = {label.decode() for label in answer["labels"][0]}, answer["scores"][0]
    (version,) = [one for one, known in LABELS.items() if labels <= set(known)]
    assert (scores > 0.6).all() if version == 1 else (scores < 0.6).all()
    return version


def asking(count: int) -> Callable[[Client, str], int]:
    """Asks a form about a picture with so many regions; the version that its answer is of."""
    content = picture(drawn(count, count))
    return lambda client, form: version_of(client.infer(form, content))


def wait_for_version(server: Server, version: int, pipeline: str = "grid") -> None:
    """Wait until no process of another version is left."""
    own, other = (f"{pipeline}{'' if one == 1 else '_v2'}" for one in (version, 3 - version))
    others = {f"{other}_{network}" for network in NETWORKS}

    def is_alone() -> bool:
        running = {process.model for process in find_model_processes(server.pid).running}
        return {f"{own}_{network}" for network in NETWORKS} <= running and not running & others

    wait_until(is_alone)


def streamed_version(server: Server, folder: Path) -> set[str]:
    """The labels that a stream's frames have."""
    clip = write_clip(folder / "clip.mkv", [drawn(9, 2)])
    with Client(server.grpc_url, timeout_s=60) as client, client.stream(clip, pipeline="grid") as frames:
        (result,) = frames
    return {label.decode() for label in result.tensors["labels"]}


def test_clients_notice_nothing_but_other_answers(folder: Path, own_server: Server) -> None:
    """Each version asks its own networks; no request inside one is lost, though its networks are unloaded at once."""
    # A request is inside for long where regions are many.
    questions = [asking(7), asking(250)]
    options = {"photos": [folder / "photos"], "wait_for_version": wait_for_version}
    with (
        clients_that_go_on([own_server.grpc_url, own_server.http_url], FORMS, questions) as seen,
        version_2(own_server, "grid", "--watch-s=0", **options) as there,
    ):
        told = " ".join(there.output.split())
        assert "photos 1 same object 100.0% score difference" in told
        assert "pixels" not in told, "no model of a cascade shows them"
        assert "kept: grid is version 2, after a restart too; version 1 is unloaded" in told
        assert streamed_version(own_server, folder) <= set(LABELS[2])
        offer = Served(own_server.grpc_url).offer()
        assert list(offer.forms["grid"].stages) == ["find", "name"], "the demo page knows it as a cascade"
        assert not offer.unreadable
    there.check(seen, FORMS, lambda version: version, more_than=2)
    assert own_server.restarts == {}
    with Client(own_server.grpc_url) as client:
        client.wait_until_ready(timeout_s=PATIENCE_S)


def test_a_version_that_is_not_right_is_refused(folder: Path, own_server: Server) -> None:
    """One answers otherwise; of one a network, which Triton does not know that it needs, cannot be loaded."""
    build_version(folder, 4)
    repository = build_version(folder, 3)
    broken = repository / "grid_v3_name_model" / "1" / "model.onnx"
    broken.unlink()
    broken.write_bytes(b"not a network")
    for version, reason in ((4, "the same object for 0.0% of the objects found"), (3, "'grid_v3_name_model' failed")):
        result = rollout(own_server, "grid", f"--to={version}", photos=[folder / "photos"])
        assert result.exit_code == 1
        assert reason in " ".join(result.output.split())
        wait_for_version(own_server, 1)
        with Client(own_server.grpc_url, timeout_s=60) as client:
            client.wait_until_ready(timeout_s=PATIENCE_S)
            for form in FORMS:
                assert version_of(client.infer(form, picture(drawn(20, 4)))) == 1


def test_what_a_request_inside_asks_for_is_there_until_it_is_answered(own_server: Server) -> None:
    """A network takes so long that the switch is over, and all of version 1 but this request, before it is answered."""
    with (
        Client(own_server.grpc_url, timeout_s=PATIENCE_S, retries=0) as client,
        ThreadPoolExecutor(1) as pool,
        RolloutSession(own_server.repository, "patient") as session,
    ):
        session.ask("load", 2)
        before = client.statistics("patient_name_model").success.count
        inside = pool.submit(client.infer, "patient", picture(drawn(150, 1)))
        wait_until(lambda: client.statistics("patient_name_model").success.count > before)
        session.ask("switch", 2)
        assert not inside.done()
        session.ask("keep")
        assert inside.result()["class_ids"].shape == (1, 150)
        wait_for_version(own_server, 2, "patient")
