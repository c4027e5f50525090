"""Another version of a pipeline, or of a cascade, takes the place of the served one while clients go on; pins."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import prompted
import pytest
import yaml
from builds import build
from colored_cells import FORMS as GRID_FORMS
from colored_cells import drawn, fields, picture, write, write_clip
from int8_networks import color_network, pictures, pipeline_file
from networks import mean_color, strongest_channel
from onnx import numpy_helper
from pages import blocks
from patience import PATIENCE_S, wait_until
from proxies import plain_proxy
from rollouts import clients_that_go_on, rollout, version_2
from small_models import running
from test_cascade_carried import FIND, WATCHED
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

ROOT = Path(__file__).parents[2]
PHOTO = ROOT / "examples" / "photos" / "cat.jpg"
FORMS = ("own", "own_fused")


def build_version(folder: Path, version: int, *, factor: float = 1.0, value: int = 114) -> Path:
    """Build a version whose scores are ``factor`` times those of version 1, on a border of ``value``."""
    network = mean_color((1, 3, 48, 64))
    (weights,) = network.graph.initializer
    weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights) * np.float32(factor), weights.name))
    (folder / "own.onnx").write_bytes(network.SerializeToString())
    operations = [
        {"op": "decode"},
        {"op": "letterbox", "size": [48, 64], "value": value},
        {"op": "normalize", "mean": [0.5] * 3, "std": [0.25] * 3},
    ]
    postprocess = {"kind": "classification", "top_k": 2, "activation": "none"}
    # One process of each model: starting them is what takes the time of these tests.
    serving = {"cpu_instances": 1}
    (folder / "own.yaml").write_text(
        yaml.safe_dump({"preprocess": {"operations": operations}, "postprocess": postprocess, "serving": serving})
    )
    build(folder / "own.yaml", folder=folder / "repository", onnx_file=folder / "own.onnx", version=version)
    return folder / "repository"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The versions of every pipeline of these tests, but those that are to be refused."""
    folder = tmp_path_factory.mktemp("rollout")
    build_version(folder, 1)
    # Other pixels and three times the scores: a mixture would be neither.
    build_version(folder, 2, factor=3.0, value=0)
    file, own = pipeline_file(folder, color_network())
    build(file, folder=folder / "repository", onnx_file=own)
    build(folder / "prompted.yaml", folder=folder / "repository", onnx_file=prompted.write(folder))
    for version in (1, 2):
        build_grid(folder, version)
    (folder / "repository" / FIND / "1" / "model.py").write_text(WATCHED.format(folder=str(folder)))
    return folder


@pytest.fixture(scope="module")
def own_server(folder: Path) -> Iterator[Server]:
    """Not the shared one, since what its names mean is changed."""
    with running(folder / "repository", device="cpu") as server:
        yield server


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


def test_clients_notice_nothing_but_other_answers(own_server: Server, tmp_path: Path) -> None:
    """Those of a proxy neither."""
    with Client(own_server.grpc_url) as client, proxied(own_server, tmp_path) as behind:
        before = scores(client, "own")
        options = {"photos": [PHOTO], "wait_for_version": wait_for_version}
        urls = [own_server.grpc_url, own_server.http_url, *behind]
        with (
            clients_that_go_on(urls, FORMS, [scores]) as seen,
            version_2(own_server, "own", "--least-top1=0", **options) as there,
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
    assert own_server.restarts == {}


def refused(server: Server, pipeline: str, photos: Path, reason: str) -> None:
    result = rollout(server, pipeline, "--to=3", photos=[photos])
    assert result.exit_code == 1
    assert reason in " ".join(result.output.split())
    assert str(server.repository) not in result.output


def replace_network(model: Path, content: bytes) -> None:
    """In the place of its file, which others may share."""
    network = model / "1" / "model.onnx"
    network.unlink()
    network.write_bytes(content)


def test_a_version_that_is_not_right_is_refused(folder: Path, own_server: Server) -> None:
    """The opposite of every score makes the worst class the best; then its files do not belong together."""
    repository = build_version(folder, 3, factor=-1.0)
    stamps = {file: file.read_text() for model in repository.glob("own_v3*") for file in model.glob("*.json")}

    def restore() -> None:
        for file, text in stamps.items():
            file.write_text(text)

    def damage_definitions() -> None:
        for file, text in stamps.items():
            file.write_text(text.replace("114", "115") if file.name == "definition.json" else text)

    def damage_certificate() -> None:
        restore()
        file = repository / "own_v3_fused" / certificate.FILE_NAME
        file.write_text(json.dumps(json.loads(stamps[file]) | {"definition_digest": "0" * 64}))

    def exchange_network() -> None:
        """By one of another definition."""
        restore()
        operations = json.loads(stamps[repository / "own_v3_model" / "definition.json"])["operations"]
        operations = [one | {"std": [0.5] * 3} if one["op"] == "normalize" else one for one in operations]
        other = onnx_graph.prepare(mean_color((1, 3, 48, 64)), Definition.model_validate({"operations": operations}))
        replace_network(repository / "own_v3_model", other.SerializeToString())

    def damage_network() -> None:
        replace_network(repository / "own_v3_model", b"not a network")

    with Client(own_server.grpc_url) as client:
        before = scores(client, "own")
        for damage, reason in (
            (lambda: None, "the same best class for 0.0% of the photos; asked for 99.0%"),
            (damage_definitions, "model own_v3_preprocess: config.pbtxt was built with definition"),
            (damage_certificate, "certificate.json was issued for definition 000000000000"),
            (exchange_network, "operations[2].std[0]: 0.5 != 0.25"),
            (damage_network, "own_v3_model' failed to load"),
        ):
            damage()
            refused(own_server, "own", PHOTO, reason)
            wait_for_version(own_server, 1)
            client.wait_until_ready(timeout_s=PATIENCE_S)
            for model in FORMS:
                np.testing.assert_array_equal(scores(client, model), before)


def test_a_network_that_takes_more_than_photos_is_compared_with_given_values(folder: Path, own_server: Server) -> None:
    build(folder / "prompted.yaml", folder=own_server.repository, onnx_file=folder / "prompted.onnx", version=2)
    missing = rollout(own_server, "prompted", "--to=2", photos=[PHOTO])
    assert missing.exit_code == 1
    assert "takes points, tokens beside each photo; got none: give each by --input NAME=VALUE" in missing.output
    np.save(folder / "tokens.npy", np.array([0, 1, 4]))
    given = ["--input=points=[[1, 2]]", f"--input=tokens={folder / 'tokens.npy'}"]
    ended = rollout(own_server, "prompted", "--to=2", *given, photos=[PHOTO])
    assert ended.exit_code == 0, ended.output
    assert "score difference 0.0000 mean, 0.0000 max" in " ".join(ended.output.split())


def test_int8_takes_the_place_of_float32_and_answers_the_same(folder: Path, own_server: Server) -> None:
    """It is compared with float32 by ``onestream parity``, and the demo page names it."""
    forms, repository, file = ("colors", "colors_fused"), own_server.repository, folder / "colors.yaml"
    shown = pictures(folder / "pictures")
    calibration = Calibration(pictures=shown)
    options = {"onnx_file": folder / "colors.onnx", "precision": "int8", "calibration": calibration}
    build(file, folder=repository, version=2, **options)
    photos = [str(path) for path in shown[:3]]

    def precisions() -> set[str]:
        with contextlib.closing(Served(own_server.grpc_url)) as page:
            return {page.offer().forms[form].precision for form in forms}

    assert precisions() == {"float32"}
    with Client(own_server.grpc_url) as client:
        before = [client.classify(photo, pipeline="colors").top for photo in photos]
    ended = rollout(own_server, "colors", "--to=2", photos=photos)
    assert ended.exit_code == 0, ended.output
    assert "float32 → int8" in ended.output
    assert precisions() == {"int8"}
    with Client(own_server.grpc_url) as client:
        for form in forms:
            after = [client.classify(photo, pipeline=form).top for photo in photos]
            assert [one.label for one in after] == [one.label for one in before] == ["red", "green", "blue"]
            assert [one.score for one in after] != [one.score for one in before]
            assert [one.score for one in after] == pytest.approx([one.score for one in before], abs=0.05)
    where = [f"--repository={repository}", f"--url={own_server.grpc_url}"]
    ended = CliRunner().invoke(app, ["parity", str(file), *photos, *where, "--against=none", "--json=-"])
    report = json.loads(ended.stdout)
    (asked,) = [subject for subject in report["subjects"] if subject["name"] == "server (int8)"]
    # Both forms' answers beside those of the reference and float32.
    assert (asked["predictions"], asked["flips"]) == (6, [])
    assert ended.exit_code == 0


def test_a_rollout_that_ends_early_is_undone(own_server: Server) -> None:
    with Client(own_server.grpc_url) as client:
        before = scores(client, "own")
        with ControlSession(own_server.repository) as session:
            session.ask("switch", "own", 2)
            assert not np.allclose(scores(client, "own"), before)
        wait_for_version(own_server, 1)
        np.testing.assert_array_equal(scores(client, "own_fused"), before)


def test_files_that_are_not_named_like_images_are_told(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    (tmp_path / "photos" / "a.jpg").write_bytes(PHOTO.read_bytes())
    result = CliRunner().invoke(
        app, ["rollout", "own", "--to=2", f"--photos={tmp_path}/photos", f"--repository={tmp_path}"]
    )
    assert result.exit_code == 2
    assert result.stderr.startswith("passed over 1 file that is not named like an image: ")


# ---------------------------------------------------------------- cascades

LABELS = {1: ["red", "green", "blue"], 2: ["rot", "grün", "blau"]}
FACTORS = {1: 1.0, 2: 0.5, 3: -1.0}
"""Of the scores: above 0.6 by version 1's network, and below by version 2's. By 3's the worst class is best."""
NETWORKS = ("find_model", "name_model")


def build_grid(folder: Path, version: int) -> Path:
    """Build a version, with labels and scores of its own."""
    described = fields()
    described["stages"]["name"]["postprocess"]["labels"] = LABELS.get(version, LABELS[1])
    networks = write(folder, **described)
    strongest_channel(networks["name"], factor=FACTORS[version])
    build(folder / "grid.yaml", folder=folder / "repository", onnx_files=networks, version=version)
    return folder / "repository"


@pytest.fixture(scope="module")
def grids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one photo, of five cells."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "five.png").write_bytes(picture(drawn(5, 1)))
    return folder


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


def wait_for_grid(server: Server, version: int) -> None:
    """Wait until no process of another version is left."""
    own, other = (f"grid{'' if one == 1 else '_v2'}" for one in (version, 3 - version))
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


def test_clients_of_a_cascade_notice_nothing_either(own_server: Server, grids: Path, tmp_path: Path) -> None:
    """Each version asks its own networks; no request inside one is lost, though its networks are unloaded at once."""
    restarts = own_server.restarts
    # A request is inside for long where regions are many.
    questions = [asking(7), asking(250)]
    options = {"photos": [grids], "wait_for_version": wait_for_grid}
    with (
        clients_that_go_on([own_server.grpc_url, own_server.http_url], GRID_FORMS, questions) as seen,
        version_2(own_server, "grid", "--watch-s=0", **options) as there,
    ):
        told = " ".join(there.output.split())
        assert "photos 1 same object 100.0% score difference" in told
        assert "pixels" not in told, "no model of a cascade shows them"
        assert "kept: grid is version 2, after a restart too; version 1 is unloaded" in told
        assert streamed_version(own_server, tmp_path) <= set(LABELS[2])
        offer = Served(own_server.grpc_url).offer()
        assert list(offer.forms["grid"].stages) == ["find", "name"], "the demo page knows it as a cascade"
        assert not offer.unreadable
    there.check(seen, GRID_FORMS, lambda version: version, more_than=2)
    assert own_server.restarts == restarts
    with Client(own_server.grpc_url) as client:
        client.wait_until_ready(timeout_s=PATIENCE_S)


def test_a_version_of_a_cascade_that_is_not_right_is_refused(folder: Path, own_server: Server, grids: Path) -> None:
    """It answers otherwise; then a network, which Triton does not know that it needs, cannot be loaded."""
    repository = build_grid(folder, 3)
    for reason in ("the same object for 0.0% of the objects found", "'grid_v3_name_model' failed"):
        refused(own_server, "grid", grids, reason)
        wait_for_grid(own_server, 1)
        with Client(own_server.grpc_url, timeout_s=60) as client:
            client.wait_until_ready(timeout_s=PATIENCE_S)
            for form in GRID_FORMS:
                assert version_of(client.infer(form, picture(drawn(20, 4)))) == 1
        replace_network(repository / "grid_v3_name_model", b"not a network")


# The last with this cascade: version 2 stays.
def test_what_a_request_inside_asks_for_is_there_until_it_is_answered(own_server: Server) -> None:
    """The switch is over, and all of version 1 but this request, before its first network answers."""
    asked, held = (own_server.repository.parent / f"{FIND}.{what}" for what in ("asked", "held"))
    with (
        Client(own_server.grpc_url, timeout_s=PATIENCE_S, retries=0) as client,
        ThreadPoolExecutor(2) as pool,
        ControlSession(own_server.repository) as session,
    ):
        session.ask("load_version", "grid", 2)
        held.touch()
        inside = pool.submit(client.infer, "grid", picture(drawn(9, 1)), request_id="inside")
        wait_until(lambda: asked.exists() and "inside" in asked.read_text())
        session.ask("switch", "grid", 2)
        kept = pool.submit(session.ask, "keep", "grid")
        wait_until(lambda: read_pins(own_server.repository).get("grid") == Pin(version=2, previous=1))
        time.sleep(1)
        assert not inside.done()
        assert not kept.done()
        held.unlink()
        assert version_of(inside.result()) == 1
        kept.result()
        wait_for_grid(own_server, 2)


# ---------------------------------------------------------------- pins


def test_the_pin_outlives_the_server_and_a_read_only_repository_stays_as_it_is(
    folder: Path, own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is asked for brings the networks of its version, and no others."""
    with Client(own_server.grpc_url) as client:
        of_version_1 = scores(client, "own")
    repository = tmp_path / "repository"
    shutil.copytree(folder / "repository", repository, ignore=shutil.ignore_patterns(".*"))
    for pipeline in ("own", "grid"):
        write_pin(repository, pipeline, Pin(version=2, previous=1))
    monkeypatch.setenv("ONESTREAM_RUN_DIR", str(tmp_path / "run"))
    repository.chmod(0o555)
    files = sorted(repository.iterdir())
    pins = (repository / "versions.json").read_text()
    with (
        running(repository, device="cpu", models=["own", "own_fused", "grid"]) as server,
        Client(server.grpc_url, timeout_s=60) as client,
    ):
        assert "own_preprocess" not in server.models
        assert version_of(client.infer("grid", picture(drawn(20, 4)))) == 2
        served = {process.model for process in find_model_processes(server.pid).running}
        assert {name for name in served if name.endswith(NETWORKS)} == {f"grid_v2_{network}" for network in NETWORKS}
        pinned = scores(client, "own")
        np.testing.assert_array_equal(scores(client, "own_fused"), pinned)
        victim = next(p for p in find_model_processes(server.pid).running if p.model == "own_v2_fused")
        victim.kill()
        wait_until(lambda: server.restarts.get("own_v2_fused"))
        client.wait_until_ready(timeout_s=PATIENCE_S)
        np.testing.assert_array_equal(scores(client, "own_fused"), pinned)
        result = rollout(server, "own", "--back", photos=[PHOTO])
        assert result.exit_code == 0, result.output
        assert not np.allclose(pinned, of_version_1)
        np.testing.assert_allclose(scores(client, "own"), of_version_1, rtol=1e-5)
        unloaded = CliRunner().invoke(app, ["models", "unload", "grid", f"--repository={repository}"])
        assert unloaded.exit_code == 0, unloaded.output
    # Of what a start makes of this, ``test_versions`` tells.
    assert read_pins(repository)["own"].version == 1
    assert sorted(repository.iterdir()) == files
    assert (repository / "versions.json").read_text() == pins
