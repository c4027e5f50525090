"""Another version of a pipeline takes the place of the served one while clients go on; pins."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from builds import build
from colored_cells import drawn, picture
from int8_networks import pictures
from networks import mean_color
from pages import blocks
from patience import PATIENCE_S, wait_until
from proxies import plain_proxy
from rollouts import (
    GRID_NETWORKS,
    build_own,
    clients_that_go_on,
    grid_version,
    refused,
    replace_network,
    rollout,
    version_2,
)
from small_models import running
from typer.testing import CliRunner

from onestream.cli.demo_page.served import Served
from onestream.cli.main import app
from onestream.client import Client
from onestream.preprocess import Definition
from onestream.serving.building.quantization.calibration import Calibration
from onestream.serving.built import certificate
from onestream.serving.built.versions import Pin, read_pins, version_steps, write_pin
from onestream.serving.graph import onnx_graph
from onestream.serving.server.control_socket import ControlSession
from onestream.serving.server.server import Server
from onestream.serving.server.triton.model_processes import find_model_processes

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
PHOTO = ROOT / "examples" / "photos" / "cat.jpg"
FORMS = ("own", "own_fused")


@contextmanager
def proxied(server: Server, folder: Path) -> Iterator[list[str]]:
    """The addresses of a proxy before the server, where this machine has an nginx."""
    if not shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        yield []
        return
    repository = f"--repository={server.repository}"
    with plain_proxy(folder / "proxy.log", repository, http=server.http_address, grpc=server.grpc_address) as addresses:
        yield [f"http://{addresses[0]}", addresses[1]]


def scores(client: Client, model: str) -> npt.NDArray[np.float32]:
    return client.infer(model, PHOTO)["scores"]


def words(printed: str) -> list[str]:
    """The words of each line; what was measured left out, and how the pixels differ."""
    return [re.sub(r"(?<=^pixels ).*|[\d.]+", "", " ".join(line.split())) for line in printed.splitlines()]


def model_names(server: Server) -> set[str]:
    """The models of all versions of this pipeline that run."""
    running = {process.model for process in find_model_processes(server.pid).running}
    return {model for model in running if model.startswith("own_")}


def wait_for_version(server: Server, version: int) -> None:
    """Wait until the models of this version are the only ones."""
    steps = set(version_steps(server.repository, "own", version))
    allowed = steps | {"own_fused", f"own_v{version}_fused"}
    wait_until(lambda: steps < model_names(server) <= allowed)


def test_clients_notice_nothing_but_other_answers(server: Server, tmp_path: Path) -> None:
    """Those of a proxy neither."""
    restarts = server.restarts
    with Client(server.grpc_url) as client, proxied(server, tmp_path) as behind:
        before = scores(client, "own")
        options = {"photos": [PHOTO], "wait_for_version": wait_for_version}
        urls = [server.grpc_url, server.http_url, *behind]
        with (
            clients_that_go_on(urls, FORMS, [scores]) as seen,
            version_2(server, "own", "--least-top1=0", **options) as there,
        ):
            (shown,) = blocks("rollout.md", "text")
            assert words(there.output.replace("own", "classify")) == words(shown)
            after = scores(client, "own")
        client.wait_until_ready(timeout_s=PATIENCE_S)
    assert not np.allclose(before, after)

    def version_of(answer: npt.NDArray[np.float32]) -> int:
        # Batches of other sizes may round the mean of a channel otherwise.
        (version,) = [number for number, known in ((1, before), (2, after)) if np.allclose(answer, known, rtol=1e-5)]
        return version

    there.check(seen, FORMS, version_of, more_than=10)
    assert server.restarts == restarts


def damages(repository: Path) -> Iterator[str]:
    """Damage version 3 in one way after the other; why it is refused then."""
    stamps = {file: file.read_text() for model in repository.glob("own_v3*") for file in model.glob("*.json")}
    yield "the same best class for 0.0% of the photos; asked for 99.0%"
    for file, text in stamps.items():
        file.write_text(text.replace("114", "115") if file.name == "definition.json" else text)
    yield "model own_v3_preprocess: config.pbtxt was built with definition"
    for file, text in stamps.items():
        file.write_text(text)
    certified = repository / "own_v3_fused" / certificate.FILE_NAME
    certified.write_text(json.dumps(json.loads(stamps[certified]) | {"definition_digest": "0" * 64}))
    yield "certificate.json was issued for definition 000000000000"
    certified.write_text(stamps[certified])
    operations = json.loads(stamps[repository / "own_v3_model" / "definition.json"])["operations"]
    operations = [one | {"std": [0.5] * 3} if one["op"] == "normalize" else one for one in operations]
    other = onnx_graph.prepare(mean_color((1, 3, 48, 64)), Definition.model_validate({"operations": operations}))
    replace_network(repository / "own_v3_model", other.SerializeToString())
    yield "operations[2].std[0]: 0.5 != 0.25"
    replace_network(repository / "own_v3_model", b"not a network")
    yield "own_v3_model' failed to load"


def test_a_version_that_is_not_right_is_refused(folder: Path, server: Server) -> None:
    """The opposite of every score makes the worst class the best; then its files do not belong together."""
    repository = build_own(folder, 3, factor=-1.0)
    with Client(server.grpc_url) as client:
        before = scores(client, "own")
        for reason in damages(repository):
            refused(server, "own", PHOTO, reason)
            wait_for_version(server, 1)
            client.wait_until_ready(timeout_s=PATIENCE_S)
            for model in FORMS:
                np.testing.assert_array_equal(scores(client, model), before)
    given = rollout(server, "own", "--to=2", "--input=points=[[1, 2]]", photos=[PHOTO])
    assert given.exit_code == 1
    assert "takes nothing beside each photo; got points" in given.output


def test_int8_takes_the_place_of_float32_and_answers_the_same(folder: Path, server: Server) -> None:
    """It is compared with float32 by ``onestream parity``, and the demo page names it."""
    forms, repository, file = ("colors", "colors_fused"), server.repository, folder / "colors.yaml"
    shown = pictures(folder / "pictures")
    calibration = Calibration(pictures=shown)
    options = {"onnx_file": folder / "colors.onnx", "precision": "int8", "calibration": calibration}
    build(file, folder=repository, version=2, **options)
    photos = [str(path) for path in shown[:3]]

    def precisions() -> set[str]:
        with contextlib.closing(Served(server.grpc_url)) as page:
            return {page.offer().forms[form].precision for form in forms}

    assert precisions() == {"float32"}
    with Client(server.grpc_url) as client:
        before = [client.classify(photo, pipeline="colors").top for photo in photos]
    ended = rollout(server, "colors", "--to=2", photos=photos)
    assert ended.exit_code == 0, ended.output
    assert "float32 → int8" in ended.output
    assert precisions() == {"int8"}
    with Client(server.grpc_url) as client:
        for form in forms:
            after = [client.classify(photo, pipeline=form).top for photo in photos]
            assert [one.label for one in after] == [one.label for one in before] == ["red", "green", "blue"]
            assert [one.score for one in after] != [one.score for one in before]
            assert [one.score for one in after] == pytest.approx([one.score for one in before], abs=0.05)
    where = [f"--repository={repository}", f"--url={server.grpc_url}"]
    ended = CliRunner().invoke(app, ["parity", str(file), *photos, *where, "--against=none", "--json=-"])
    report = json.loads(ended.stdout)
    (asked,) = [subject for subject in report["subjects"] if subject["name"] == "server (int8)"]
    # Both forms' answers beside those of the reference and float32.
    assert (asked["predictions"], asked["flips"]) == (6, [])
    assert ended.exit_code == 0


def test_a_rollout_that_ends_early_is_undone(server: Server) -> None:
    with Client(server.grpc_url) as client:
        before = scores(client, "own")
        with ControlSession(server.repository) as session:
            session.ask("switch", "own", 2)
            assert not np.allclose(scores(client, "own"), before)
        wait_for_version(server, 1)
        np.testing.assert_array_equal(scores(client, "own_fused"), before)


def test_the_pin_outlives_the_server_and_a_read_only_repository_stays_as_it_is(
    folder: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is asked for brings the networks of its version, and no others."""
    with Client(server.grpc_url) as client:
        of_version_1 = scores(client, "own")
    repository = tmp_path / "repository"
    shutil.copytree(folder / "repository", repository, ignore=shutil.ignore_patterns(".*", "classify*", "carried*"))
    for pipeline in ("own", "grid"):
        write_pin(repository, pipeline, Pin(version=2, previous=1))
    monkeypatch.setenv("ONESTREAM_RUN_DIR", str(tmp_path / "run"))
    repository.chmod(0o555)
    files = sorted(repository.iterdir())
    pins = (repository / "versions.json").read_text()
    with (
        running(repository, device="cpu", models=["own", "own_fused", "grid"]) as other,
        Client(other.grpc_url, timeout_s=60) as client,
    ):
        assert "own_preprocess" not in other.models
        assert grid_version(client.infer("grid", picture(drawn(20, 4)))) == 2
        served = {process.model for process in find_model_processes(other.pid).running}
        assert {name for name in served if name.endswith(GRID_NETWORKS)} == {
            f"grid_v2_{network}" for network in GRID_NETWORKS
        }
        pinned = scores(client, "own")
        np.testing.assert_array_equal(scores(client, "own_fused"), pinned)
        victim = next(p for p in find_model_processes(other.pid).running if p.model == "own_v2_fused")
        victim.kill()
        wait_until(lambda: other.restarts.get("own_v2_fused"))
        client.wait_until_ready(timeout_s=PATIENCE_S)
        np.testing.assert_array_equal(scores(client, "own_fused"), pinned)
        result = rollout(other, "own", "--back", photos=[PHOTO])
        assert result.exit_code == 0, result.output
        assert not np.allclose(pinned, of_version_1)
        np.testing.assert_allclose(scores(client, "own"), of_version_1, rtol=1e-5)
        unloaded = CliRunner().invoke(app, ["models", "unload", "grid", f"--repository={repository}"])
        assert unloaded.exit_code == 0, unloaded.output
    # Of what a start makes of this, ``test_versions`` tells.
    assert read_pins(repository)["own"].version == 1
    assert sorted(repository.iterdir()) == files
    assert (repository / "versions.json").read_text() == pins
